# SPDX-License-Identifier: AGPL-3.0-or-later
"""The commands of every day, asked for in many ways, in a folder with made-up files.

What is asked and done is in everyday_*.toml; the notation is that of names.py, and `here` names what lies in
the folder. A command that prints nothing is now and then followed by the word that it is done. What others
print is never made up: `played` runs them in the sandbox, shows what came of it and ends there.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rusty_r2.agent.prompt import SYSTEM
from rusty_r2.data import voice
from rusty_r2.data.episode import Episode, Turn, say
from rusty_r2.data.names import PLEASE, SHELL, Namer, Phrases
from rusty_r2.gym.env import EnvConfig, listed, shown
from rusty_r2.gym.sandbox import Limits, Result, open_sandbox
from rusty_r2.protocol import Cmd, Msg

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Sentence = tuple[dict[str, Any], str]
"""an entry, and one of the ways to ask for it"""

SOURCE = "everyday"
RUNS = re.compile(
    r"(?!.*\b(RANDOM|HOME|PATH|shuf|date|mtime|newer|tar|zip|tail -[fF]|rm -i)\b)"
    r"(?!.*\b(ls -\w*[lti]|stat (?!-c)|stat -c %[w-z]))(?!.* (/\S|/$|\.\.|~))"
    r"(awk|base64|basename|cat|chmod|cmp|comm|cp|cut|diff|dirname|echo|find|grep|head|ln|ls|md5sum|mkdir|mv|nl|od|paste"
    r"|printf|rev|rm|rmdir|sed|seq|sha256sum|sort|split|stat|tac|tail|touch|tr|uniq|wc)\b.*"
)
"""commands that need nothing but the folder, end, and print the same each time here"""
_SILENT = re.compile(
    r"(mkdir|touch|cp|mv|rm(?! -i)|rmdir|chmod|ln|split|gzip|gunzip|xz|truncate) [^|]*"
    r"|(sed -i(\.\w+)?|sort (-\w+ )*-o) [^|]*|.*[^2]>>? \S+|.*\bxargs sed -i .*"
)
_ORDER = re.compile(
    r"(add|append|combine|copy|count|create|delete|display|duplicate|erase|find|give|join|list|make|merge|move|print"
    r"|put|read|remove|rename|replace|reverse|save|show|sort|swap|turn|write)\b[^.?!:;,]*"
)
_ALONE = re.compile(r"[|&;<]|^(cd|exit|man|ssh|watch|sleep|top|less|jobs|history|tail -f)\b|-v$")
_BOTH = (
    *("{} and {}", "{} and then {}", "{}, then {}", "{}, and {}", "first {}, then {}", "{}. then {}"),
    "{}; {}",
    *("{}, after that {}", "{} and after that {}", "{}. Also {}", "two things: {} and {}", "{} and also {}"),
)


@cache
def entries() -> list[dict[str, Any]]:
    pages = sorted(Path(__file__).parent.glob("everyday_*.toml"))
    return [one for page in pages for one in tomllib.loads(page.read_text(encoding="utf-8"))["everyday"]]


@cache
def _sentences() -> list[Sentence]:
    """All in one list: what has more sentences is asked for more often."""
    return [(one, wording) for one in entries() for wording in one["say"]]


@cache
def _orders() -> list[Sentence]:
    """Those that can stand beside another: an order and nothing more, of a command that is not a line."""
    said = [(one, wording) for one, wording in _sentences() if _ORDER.fullmatch(wording)]
    return [(one, wording) for one, wording in said if not _ALONE.search(one["do"])]


def everyday(namer: Namer) -> Episode:
    """A request and its command; sometimes how that ended, and the last word."""
    request, command, names = _drawn(namer)
    turns: list[Turn] = [("user", request + listed(names)), say(Cmd(command))]
    if _silent(command) and namer.rng.random() < 0.5:
        turns += [("observation", "exit 0"), say(Msg(voice.done(namer.rng, "untested")))]
    return Episode("STEPS" if len(turns) > 2 else "CMD", SOURCE, (("system", SYSTEM), *turns))


def played(words: Sequence[str], count: int, *, seed: int = 0) -> Iterator[Episode]:
    """Of `count` requests those whose commands can run here, with what they really printed."""
    for number in range(count):
        namer = Namer(words, random.Random(f"{seed}/played/{number}"))
        request, command, names = _drawn(namer)
        if not RUNS.fullmatch(command):
            continue
        about = [word for word in re.findall(r"\w+", request) if re.search(rf"\b{word}\b", command)]
        files = {path: content for name in sorted(names) for path, content in _file(name, about, namer)}
        with open_sandbox(at_least="landlock", limits=Limits(wall_s=3.0), files=files) as box:
            result = box.run(command)
        if result.ok:
            turns = (("user", request + listed(names)), say(Cmd(command)))
            seen = ("observation", shown(result, EnvConfig.max_output))
            last = say(_last(command, result, namer.rng))
            yield Episode("STEPS", SOURCE, (("system", SYSTEM), *turns, seen, last))


def _drawn(namer: Namer) -> tuple[str, str, set[str]]:
    """A request, its command, and the names of what lies in the folder; now and then two in one."""
    rng = namer.rng
    if rng.random() < 0.08:
        (first, command, names), (second, after, more) = (_written(namer, _orders()) for _ in range(2))
        request = rng.choice(_BOTH).format(first, second)
        command, names = f"{command} && {after}", names | more
    else:
        request, command, names = _written(namer, _sentences())
    if names or rng.random() < 0.7:
        others = range(rng.randint(0, 6))
        names |= {namer.file() if rng.random() < 0.7 else f"{namer.word()}/" for _ in others}
    return _dressed(request, command, rng), command, names


def _written(namer: Namer, sentences: list[Sentence]) -> tuple[str, str, set[str]]:
    """One sentence with names, its command, and what must lie in the folder."""
    write = Phrases({}, namer)
    one, wording = namer.rng.choice(sentences)
    command = write(one["do"])
    if voice.dangerous_command(command) or command.split()[0] in SHELL:
        return _written(namer, sentences)  # its made-up names are the wrong words
    return write(wording), command, {write(name) for name in one.get("here", ())}


def _dressed(request: str, command: str, rng: random.Random) -> str:
    """As people type: with or without a capital (a name keeps its own), a full stop, a please."""
    if rng.random() < 0.3 and re.split(r"[:,;.?!]*(?:'s)?(?:\s|$)", request, maxsplit=1)[0] not in command:
        request = request[:1].upper() + request[1:]
    if request[-1] not in ".?!" and rng.random() < 0.35:
        request += rng.choice((*PLEASE, " now"))
    return request


def _file(name: str, about: list[str], namer: Namer) -> Iterator[tuple[str, str]]:
    """A file of a few lines, some of which hold what was asked about; a folder with one in it."""
    if name.endswith("/"):
        yield from _file(name + namer.file(), about, namer)
        return
    rng = namer.rng
    lines = [namer.words() if rng.random() < 0.7 else f"{namer.number()},{namer.word()}" for _ in range(6)]
    some = [f"{rng.choice(about)} {line}" if about and rng.random() < 0.4 else line for line in lines]
    yield name, "".join(f"{line}\n" for line in some[: rng.randint(2, 6)])


def _silent(command: str) -> bool:
    """Whether it prints nothing where all goes well; of several, whether none does."""
    return all(_SILENT.fullmatch(part) for part in re.split(r" && |; ", command))


def _last(command: str, result: Result, rng: random.Random) -> Msg:
    """The last word: the number that was printed, that this is all, or that there is nothing."""
    number = re.fullmatch(r"\s*(\d+)(\s+\S+)?\s*", result.output)
    if number and re.search(r"\b(wc|grep -c|stat -c %s|\$\(\()", command):
        return Msg(voice.answer(number.group(1), rng))
    if result.output.strip():
        return Msg(voice.done(rng, "shown"))
    return Msg(voice.done(rng, "untested" if _silent(command) else "nothing"))
