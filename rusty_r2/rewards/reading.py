# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a trace shows, whoever recorded it: the answer, its code blocks, the calls, what was asked for.

Rewards read traces through here, so a run of our own protocol (`steps`) and one of a hooked or
imported agent (`tool_calls`) are judged alike. All of it is linear in the length of the text; nothing runs.
What was asked for is guessed from the request's words (English and German); a guess only ever
decides whether silence counts as an answer, never whether work was good.
"""

from __future__ import annotations

import ast
import json
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rusty_r2.protocol import Cmd, Edit, Msg
from rusty_r2.trace import ExecutionTrace, Step, ToolCallTrace

MAX_READ = 200_000
"""characters of an answer or a block that are looked at"""


@dataclass(frozen=True)
class Block:
    """One fenced block of code."""

    language: str
    source: str


@dataclass(frozen=True)
class Call:
    """One thing the agent did, and how it ended."""

    name: str
    ok: bool
    text: str
    """the command, or the arguments in words"""
    result: str = ""
    path: str = ""
    """the file it writes, where it writes one"""
    content: str | None = None
    """what it writes there"""


PYTHON = frozenset({"python", "py", "python3"})
SHELL = frozenset({"bash", "sh", "shell"})
_UNRUN_WORDS = """
c c++ cpp cs c# csharp css dart dockerfile elixir go golang graphql haskell hcl html ini java javascript js
jsx json kotlin lua makefile nix objective-c perl php powershell proto pycon r ruby rb rust rs scala scss sql
svelte swift terraform toml ts tsx typescript vue xml yaml yml zig zsh fish console diff
"""
UNRUN = frozenset(_UNRUN_WORDS.split())
"""languages that count as code and are not run"""

_FENCE = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})(?P<info>[^\n`]*)$")


def answer(trace: ExecutionTrace) -> str:
    """The last words to the user."""
    return trace.final_response or (trace.answer if all(map(_is_text, trace.steps[-1:])) else "")


def _is_text(step: Any) -> bool:
    """Whether a step from outside holds what it should: its fields are not checked on the way in."""
    return isinstance(step.reply, str) and isinstance(step.observation, str)


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a text, in order; one that is never closed runs to the end."""
    found: list[Block] = []
    mark, language = "", ""
    lines: list[str] = []
    for line in text[:MAX_READ].splitlines():
        fence = _FENCE.match(line.rstrip())
        closes = bool(mark and fence and fence["mark"].startswith(mark) and not fence["info"].strip())
        if closes:
            found.append(Block(language, "\n".join(lines) + "\n"))
            mark = ""
        elif mark:
            lines.append(line)
        elif fence:
            mark, lines = fence["mark"], []
            language = (fence["info"].split() or [""])[0].strip("{}.").lower()
    if mark:
        found.append(Block(language, "\n".join(lines) + "\n"))
    return found


def prose(text: str) -> str:
    """A text without its code, fenced or between backticks."""
    kept, inside = [], ""
    for line in text[:MAX_READ].splitlines():
        fence = _FENCE.match(line.rstrip())
        if inside:
            if fence and fence["mark"].startswith(inside) and not fence["info"].strip():
                inside = ""
        elif fence:
            inside = fence["mark"]
        else:
            kept.append(line)
    return re.sub(r"`[^`\n]*`", " ", "\n".join(kept))


def calls(trace: ExecutionTrace) -> list[Call]:
    """Everything the agent did, in order: its steps, or its tool calls."""
    done = [call for step in trace.steps if (call := _from_step(step)) is not None]
    return done + [_from_tool(call) for call in trace.tool_calls]


def real_calls(trace: ExecutionTrace) -> list[Call]:
    """The calls that can change or show something, each once, with its last outcome."""
    last = {(call.name, call.text, call.path, call.content): call for call in calls(trace)}
    return [call for call in last.values() if not idle(call)]


def did_something(trace: ExecutionTrace) -> bool:
    return any(call.ok for call in real_calls(trace))


def wrote_code(trace: ExecutionTrace) -> bool:
    """Whether a file was written that has to do with the request: by an edit, a tool or a command."""
    return any(
        (call.path or _WRITES_FILE.search(call.text)) and related(trace.user_query, _all_of(call))
        for call in real_calls(trace)
        if call.ok
    )


_WRITES_FILE = re.compile(r">|\btee\b|\bsed -i|\bpatch\b|\bgit apply\b")


def _all_of(call: Call) -> str:
    return f"{call.text}\n{call.path}\n{call.content or ''}"


def idle(call: Call) -> bool:
    """A call that does nothing: an echo of fixed words, a sleep, an empty command, no action at all."""
    if call.name == "malformed":
        return True
    if call.path:
        return call.content is not None and not call.content.strip()
    words = call.text.strip()
    return not words or words in ("{}", "[]") or _idle_command(words)


_IDLE_WORD = re.compile(r"(?:true|:|pwd|exit|logout|clear|date|sleep|echo|printf|cd|test|wait)\b|#|:$")


def _idle_command(command: str) -> bool:
    if len(command) > 2000 or any(mark in command for mark in (">", "|", "`", "$(")):
        return False
    parts = [part.strip() for part in re.split(r"[;&\n]+", command) if part.strip()]
    return all(_IDLE_WORD.match(part) for part in parts)


_REFUSED = re.compile(r"exit [1-9]|stopped: |SYSTEM_MSG: ")
"""how the gym's answer begins where a command failed or a file was not written"""


def _from_step(step: Step) -> Call | None:
    if not _is_text(step):
        return Call("malformed", False, str(step.reply)[:MAX_READ], str(step.observation))
    action = step.action
    if action is None:
        return Call("malformed", False, step.reply[:MAX_READ], step.observation)
    if isinstance(action, Msg):
        return None
    ok = bool(step.ok) and not _REFUSED.match(step.observation)
    if isinstance(action, Cmd):
        return Call("CMD", ok, action.command, step.observation)
    assert isinstance(action, Edit)
    return Call("EDIT", ok, f"write {action.path}", step.observation, action.path, action.content)


_PATH_KEYS = ("path", "file_path", "filename", "file", "filepath", "target_file", "notebook_path")
_CONTENT_KEYS = ("content", "contents", "text", "new_string", "new_str", "code", "file_text", "data")
_COMMAND_KEYS = ("command", "cmd", "script", "shell_command")
_WRITES = re.compile(
    r"write|edit|replac|patch|creat|save|append|delet|remov|insert|updat|mv|move|renam|str_replace", re.I
)


def _from_tool(call: ToolCallTrace) -> Call:
    given = _arguments(call.arguments)
    text = next((given[key] for key in _COMMAND_KEYS if isinstance(given.get(key), str)), None)
    path = next((given[key] for key in _PATH_KEYS if isinstance(given.get(key), str)), "")
    content = next((given[key] for key in _CONTENT_KEYS if isinstance(given.get(key), str)), None)
    name = str(call.tool_name)
    writes = bool(path and _WRITES.search(name))
    said = text if text is not None else _words(given)
    return Call(
        name,
        succeeded(call),
        said,
        _words(call.result),
        path if writes else "",
        content if writes else None,
    )


def _arguments(given: Any) -> dict[str, Any]:
    """Named arguments; those of hooked functions come as {"args": …, "kwargs": …}."""
    if not isinstance(given, Mapping):
        return {"args": given} if given else {}
    inner = given.get("kwargs")
    return {**given, **inner} if isinstance(inner, Mapping) else dict(given)


def _words(value: Any) -> str:
    if isinstance(value, str):
        return value[:MAX_READ]
    try:
        return json.dumps(value, sort_keys=True, default=str)[:MAX_READ]
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__


_FAILED = re.compile(
    r"\s*(?:error\b|traceback \(most recent|exception\b|fatal:|failed\b|exit code:? [1-9])", re.I
)


def succeeded(call: ToolCallTrace) -> bool:
    """Whether a tool call really worked: its flag, its error and what came back must agree."""
    if call.success is not True or call.error:
        return False
    if isinstance(call.result, Mapping):
        code = call.result.get("exit_code", call.result.get("returncode", 0))
        return (
            not call.result.get("error")
            and call.result.get("success", True) is not False
            and code in (0, None)
        )
    return not (isinstance(call.result, str) and _FAILED.match(call.result))


def passed(trace: ExecutionTrace) -> bool | None:
    """Whether the gym said that its task is done; None where it said nothing."""
    if not (trace.task_name and trace.steps):
        return None
    if isinstance(passes := trace.reward_parts.get("passes"), (int, float)):
        return passes > 0
    if trace.ended not in ("done", "turns", ""):
        return None
    return trace.ended == "done" and trace.steps[-1].reward > 0


_PARSING = threading.Lock()


def python_tree(source: str) -> ast.Module | str:
    """The syntax tree of a Python text, or why it has none. Nothing runs, and no warning is shown."""
    if len(source) > MAX_READ:
        return f"longer than {MAX_READ:,} characters"
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return f"{type(error).__name__}: {error}"[:200]


# ── what was asked for ──────────────────────────────────────────────────────────────────────────

_HOW = re.compile(
    r"\s*(?:(?:can|could|would) you (?:please )?|please )?"
    r"(?:how|why|what(?! files)|when|who|explain|describe|(?:tell|show) me (?:how|why|about)|"
    r"is|are|does|do|should|wie|warum|was|erkl\w+)\b",
    re.I,
)
_THINGS = (
    r"(?:functions?|scripts?|programs?|class(?:es)?|code|snippets?|regex|one-liners?|methods?|modules?|"
    r"algorithms?|decorators?|generators?|python|bash|funktion\w*|skripte?|programme?|klassen?)\b"
)
_ORDER = r"(?:^|[.?!:,\n]\s{0,4}|\b(?:please|bitte|you|me|and|then)\s+(?:to\s+)?)"
"""where an order begins: at the start of a sentence, or after "please", "can you" and the like"""
_CODE = re.compile(
    rf"{_ORDER}(?:write|implement|create|build|code|program|generate|give me|make|fix|refactor|complete|"
    rf"define|develop|schreib\w*|erstell\w*|implementier\w*|programmier\w*)\b[^.?!\n]{{0,80}}?\b{_THINGS}"
    rf"|\bi (?:need|want|would like|'d like) an?\b[^.?!\n]{{0,40}}?\b{_THINGS}"
    rf"|\b{_THINGS}[^.?!\n]{{0,80}}?\b(?:schreiben|erstellen|implementieren|programmieren)\b",
    re.I,
)
_TOOLS = re.compile(
    rf"{_ORDER}(?:run|execute|list|delete|remove|create|rename|move|copy|open|read|search|find|look up|"
    r"install|download|check|fetch|send|commit|deploy|count|edit|append|fix|add|update|print|show|"
    r"suche?|lies|öffne|lösche?|erstelle?|liste|führe?)\b"
    r"[^.?!\n]{0,60}?"
    r"(?:\b(?:files?|folders?|director(?:y|ies)|repo(?:sitory)?|commands?|tests?|web|internet|e-?mails?|"
    r"logs?|branch(?:es)?|database|servers?|process(?:es)?|disk|terminal|shell|lines|dateien?|ordner|"
    r"verzeichnis)\b"
    r"|\b[\w/-]+\.(?!g\b|e\b)[a-z]{1,4}\b)",
    re.I,
)
_NAMED = re.compile(
    r"\b(?:called|named|namens)\s+[`'\"]?(?P<bare>[A-Za-z_]\w*)"
    r"|\b(?:function|class|method|funktion|klasse)\s+(?:[`'\"](?P<quoted>[A-Za-z_]\w*)|(?P<called>[A-Za-z_]\w*)\()",
    re.I,
)


def wants_code(query: str) -> bool:
    """Whether the request is for a piece of code."""
    return bool(_CODE.search(query[:4000])) and not _HOW.match(query)


def wants_tools(query: str) -> bool:
    """Whether the request cannot be met with words alone."""
    return bool(_TOOLS.search(query[:4000])) and not _HOW.match(query) and not wants_code(query)


_FILE = re.compile(r"(?<![\w/.:])[\w/-]*\w+\.(?!g\b|e\b|com\b|org\b|net\b)[a-z][a-z0-9]{0,4}\b")


def wanted_files(query: str) -> list[str]:
    """Files the request names, without their folders."""
    return [match[0].rpartition("/")[2] for match in _FILE.finditer(query[:4000])]


_COMMON_WORDS = """
and cal cla cod con def ein fil fix for fro fun has int imp let mak mod nam new not pri pro pyt ret scr sel
som str tha the thi try use wit wri you
"""
_COMMON = frozenset(_COMMON_WORDS.split())


def related(query: str, done: str) -> bool:
    """Whether work shares any telling word with the request, by the word's first three letters."""
    asked = {word[:3] for word in re.findall(r"[^\W\d_]{3,}", query[:4000].casefold())} - _COMMON
    made = {word[:3] for word in re.findall(r"[^\W\d_]{3,}", done[:MAX_READ].casefold())}
    return not asked or bool(asked & made) or any(name in done for name in wanted_files(query))


def wanted_names(query: str) -> Iterator[str]:
    """Names the request says the code must define."""
    if wants_code(query):
        for match in _NAMED.finditer(query[:4000]):
            yield match["bare"] or match["quoted"] or match["called"]
