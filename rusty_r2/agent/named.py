# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a person's request names of the folder, and how much of that is shown with it.

As in the gym: code where the request is about what the code says, else only the names of what is there. "Run
main.py", "rename main.py" and "how long is main.py" are about the file as a whole; a mind that has learned
that shown code is to be changed would change it. "Fix main.py" and "total in main.py skips the first one"
speak of what is in it: they say that it is wrong, or name something that it defines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rusty_r2.agent.protected import may_show
from rusty_r2.gym.env import clip, listed

MOST_SHOWN = 3
"""files named in a request whose code is shown with it"""
_WORD = re.compile(r"[\w./-]+")
_INSIDE = re.compile(
    r"\b(?:fix\w*|bugs?|buggy|debug\w*|repair\w*|correct|incorrect|broken|wrong|faulty|mistakes?|fails?|crash\w*"
    r"|missing|doesn'?t work|not quite right|needs work|code review|implement\w*|refactor\w*|edit|modify"
    r"|rewrite|must|should|shall|ought|returns?|returning|raises?|catch|functions?|method|class|parameters?|values?"
    r"|variable|dict|dictionary|loop|comments?|docstrings?|shebang|f-string|statement|logging|type hints?)\b",
    re.I,
)
"""words that speak of what is in a file of code"""
_DEFINED = re.compile(r"^\s*(?:async\s+)?(?:def|class)\s+(\w+)", re.M)


def named(folder: Path, query: str, room: int) -> tuple[str, list[str]]:
    """What stands under a request, of about `room` characters, and the files whose code is in it."""
    names = list(dict.fromkeys(word.strip(".,:;?!") for word in _WORD.findall(query)))
    told, code = "", list[str]()
    for name in names:
        if len(code) == MOST_SHOWN or not (name.endswith(".py") and may_show(folder, name)):
            continue
        body = (folder / name).read_text(encoding="utf-8", errors="replace").rstrip()
        if not _speaks_of(query, body):
            continue
        code.append(name)
        told += f"\n\nCURRENT_FILE: {name}\n{clip(body, room)}"
        room = max(room - len(body), 80)
    if code:
        return told, code
    there = {path.name: path for path in folder.glob("[!.]*")}
    if not any(_is_there(name, there) for name in names):
        return "", []
    return listed(name + "/" * path.is_dir() for name, path in there.items()), []


def _speaks_of(query: str, body: str) -> bool:
    """Whether a request is about what a file says: that it is wrong, or something it defines."""
    plain = " ".join(word for word in query.split() if ".py" not in word)
    return bool(_INSIDE.search(plain) or set(re.findall(r"\w+", plain)).intersection(_DEFINED.findall(body)))


def _is_there(word: str, there: Mapping[str, Path]) -> bool:
    """Whether a word of a request means something that is there, and is not just a word."""
    path = there.get(word.partition("/")[0])
    return path is not None and ("." in word or "/" in word or path.is_dir())
