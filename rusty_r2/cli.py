# SPDX-License-Identifier: AGPL-3.0-or-later
"""The `rusty` command: a table from words to functions, and nothing else.

Each function takes one frozen dataclass and returns what it made (a Path, a text, or None). The
dataclass is the command's options, its docstrings are the help, and the module is imported when its
words are typed, so `rusty --help` answers before torch would have loaded.
`--config FILE` (TOML or JSON, also a run's own config.json) gives defaults; the command line wins.
"""

from __future__ import annotations

import importlib
import io
import math
import os
import re
import shlex
import sys
from contextlib import redirect_stderr
from dataclasses import fields
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from rusty_r2 import __version__
from rusty_r2.config import SPEECH, known_only, read
from rusty_r2.errors import ConfigError, RustyError
from rusty_r2.gym.safetext import neutral

COMMANDS = {
    "chat": ("rusty_r2.welcome:chat", "talk to Rusty in a folder of yours"),
    "ask": ("rusty_r2.welcome:ask", "one request, one answer"),
    "doctor": ("rusty_r2.doctor:doctor", "what this machine can do, and what is missing"),
    "gym list": ("rusty_r2.gym.catalog:show", "the tasks and families of the gym"),
    "gym check": ("rusty_r2.gym.catalog:check", "prove that every task can be solved, and not by cheating"),
    "gym play": ("rusty_r2.gym.catalog:play", "play one task by hand or by its gold solution"),
    "lm tokenizer": ("rusty_r2.lm.tokenizer:build", "train the 24,000-word tokenizer from text and code"),
    "lm generate": ("rusty_r2.lm.generate:generate", "write text with a checkpoint"),
    "lm bench": ("rusty_r2.lm.bench:bench", "memory and tokens per second of every weight format"),
    "data corpus": ("rusty_r2.data.corpus:build", "turn text into token shards"),
    "data download": ("rusty_r2.data.download:download", "fetch datasets by name, licences checked"),
    "data episodes": ("rusty_r2.data.episodes:build", "make supervised episodes in the protocol"),
    "data drills": ("rusty_r2.data.drills:build", "endless practice rows: copying lessons, gym tasks"),
    "data rows": ("rusty_r2.data.pipeline:build", "turn traces into KTO, GRPO, SFT and DPO rows at once"),
    "data kto": ("rusty_r2.data.kto:build", "KTO rows: prompt, completion, good or bad"),
    "data grpo": ("rusty_r2.data.grpo:build", "GRPO rows: recorded groups with their rewards"),
    "data sft": ("rusty_r2.data.sft:build", "SFT rows: what good traces did"),
    "data dpo": ("rusty_r2.data.dpo:build", "DPO rows: the better and the worse answer"),
    "data validate": ("rusty_r2.data.validate:validate", "name line and field of what is wrong in a file"),
    "trace list": ("rusty_r2.traces:show_list", "recorded runs: search and filter"),
    "trace show": ("rusty_r2.traces:show", "one run: the request, what was done, the answer"),
    "trace replay": ("rusty_r2.traces:replay", "one run as it happened, part by part"),
    "trace label": ("rusty_r2.traces:label", "say what runs were worth, one key each"),
    "trace stats": ("rusty_r2.traces:stats", "how many runs there are, labelled and not"),
    "trace export": ("rusty_r2.traces:export", "write runs to .jsonl, .parquet or a folder"),
    "trace import": ("rusty_r2.traces:bring_in", "logs, sessions, spans and checkpoints become traces"),
    "trace collect": ("rusty_r2.data.collect:collect", "several minds play the same tasks of the gym"),
    "trace proxy": ("rusty_r2.data.proxy:proxy", "record any agent in front of an OpenAI-compatible server"),
    "rewards audit": ("rusty_r2.rewards.audit:audit", "let a red team try to cheat the rewards in use"),
    "rewards learn": ("rusty_r2.rewards.labeler:learn", "learn from people's labels, and label what is left"),
    "rewards score": ("rusty_r2.rewards.scoring:score", "keep the reward of each trace and its parts"),
    "train supervised": ("rusty_r2.train.supervised:train", "train TinyRWKVLM on shards or episodes"),
    "train ppo": ("rusty_r2.train.ppo:train", "agentic fine-tuning in the gym"),
    "train sft": ("rusty_r2.train.sft:train", "LoRA on a borrowed model: imitate good completions"),
    "train kto": ("rusty_r2.train.kto:train", "LoRA on a borrowed model: learn from good and bad"),
    "train dpo": ("rusty_r2.train.dpo:train", "LoRA on a borrowed model: learn from pairs, better and worse"),
    "train grpo": ("rusty_r2.train.grpo:train", "LoRA on a borrowed model: several answers, compared"),
    "train replay": ("rusty_r2.train.replay:train", "the same from recorded answers and their rewards"),
    "train merge": ("rusty_r2.train.merge:merge", "an adapter and its base become one model folder"),
    "eval": ("rusty_r2.eval.evaluate:evaluate", "one table for any model: gym, commands, code, text"),
    "export gguf": ("rusty_r2.export.gguf:export", "write a merged model as one GGUF file, quantised"),
    "export check": ("rusty_r2.export.check:gate", "prove that a GGUF file is the model it came from"),
    "export ollama": ("rusty_r2.export.ollama:deploy", "make an Ollama model of a GGUF file"),
    "serve": ("rusty_r2.export.serve:serve", "a GGUF file behind an OpenAI-compatible server"),
    "loop": ("rusty_r2.loop.run:loop", "train from use, prove it, promote it or keep the old one"),
    "models": ("rusty_r2.models:show", "what was trained, how it scored, which one is in use"),
    "models add": ("rusty_r2.models:add", "take a GGUF file or a checkpoint into the registry"),
    "models promote": ("rusty_r2.models:promote", "put a version in use, if its gate is green"),
    "models rollback": ("rusty_r2.models:rollback", "back to the version before, in one command"),
    "models gc": ("rusty_r2.models:collect", "remove the weights of versions nobody needs"),
    "web": ("rusty_r2.web.serve:web", "one local page for traces, labels, runs, datasets and models"),
}


class Misused(RustyError):
    """The words after a command are wrong: exit code 2."""


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without these letters shows their numbers
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _understand(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough: `rusty gym list | head`
        _let_go()
        return 0
    except OSError as error:  # the help or the version, into a file on a full disk
        _let_go()
        print(f"rusty: {error.strerror or error}. Type: rusty doctor", file=sys.stderr)
        return 1


def _let_go() -> None:
    """Give up what cannot be written, or Python would try again at its end and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _understand(words: list[str]) -> int:
    if words in ([], ["--help"], ["-h"]):
        print(usage(COMMANDS), flush=True)
        return 0
    if words == ["--version"]:
        print(f"rusty {__version__}")
        return 0
    name = next((n for n in (" ".join(words[:2]), " ".join(words[:1])) if n in COMMANDS), None)
    if name is None:
        return _lost(words)
    return _carry_out(name, words[len(name.split()) :])


def _lost(words: list[str]) -> int:
    """Half a command shows what begins with it; a wrong one gets the nearest."""
    room = {n: made for n, made in COMMANDS.items() if n.split()[0] == words[0]}
    if room and words[1:] in ([], ["--help"], ["-h"]):
        print(usage(room), flush=True)
        return 0
    from difflib import get_close_matches

    said = " ".join(words[:2])
    near = list(room) or get_close_matches(said, COMMANDS) or get_close_matches(words[0], COMMANDS)
    asked = ", ".join(f"rusty {name}" for name in near) if near else "rusty --help"
    print(f"rusty: there is no command {said!a}. Type: {asked}", file=sys.stderr)
    return 2


def usage(commands: dict[str, tuple[str, str]]) -> str:
    width = max(len(name) for name in commands)
    lines = (f"  rusty {name:<{width}}  {about}" for name, (_, about) in commands.items())
    return "usage: rusty COMMAND [options]      (rusty COMMAND --help explains the options)\n\n" + "\n".join(
        lines
    )


def options_of(name: str) -> tuple[Any, type[Any]]:
    """The function behind a command, and the dataclass of its options."""
    module, _, function = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), function)
    (config,) = (hint for key, hint in get_type_hints(command).items() if key != "return")
    return command, config


def _carry_out(name: str, options: list[str]) -> int:
    try:
        command, config = options_of(name)
        made = command(_parse(name, config, options))
        if made is not None:
            print(str(made).encode("utf-8", "backslashreplace").decode(), flush=True)  # odd file names
    except Misused as error:
        print(neutral(f"rusty {name}: {_to_help(str(error), name)}"), file=sys.stderr)
        return 2
    except RustyError as error:
        print(neutral(f"rusty {name}: {_with_next(str(error), name)}"), file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise
    except OSError as error:  # a full or read-only disk, a folder that may not be read
        _let_go()
        what = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        print(neutral(f"rusty {name}: {_with_next(what, name)}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(f"\nrusty {name}: stopped{f'; {error}' if str(error) else ''}", file=sys.stderr)
        return 130
    return 0


def _with_next(problem: str, name: str) -> str:
    """A problem that names no command to type, as one out of range does, leads to the command's help."""
    if re.search(r"[Tt]ype: |\brusty [a-z]|\bpip install ", problem):
        return problem
    return _to_help(problem, name)


def _to_help(problem: str, name: str) -> str:
    if ", type: rusty " in problem:
        return problem
    end = "" if problem.endswith((".", "?", "!")) else "."
    return f"{problem}{end} Type: rusty {name} --help"


def _parse(name: str, config: type[Any], options: list[str]) -> Any:
    import tyro

    words, said = _with_speech(config, _with_file(config, options)), io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(config, args=words, prog=f"rusty {name}")
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise Misused(_unknown(name, words, config) or _boxed(said.getvalue(), name)) from end


def _unknown(name: str, words: list[str], config: type[Any]) -> str:
    """What to say of the first option that there is none of, if one is."""
    from difflib import get_close_matches

    names = {field.name: f"--{field.name.replace('_', '-')}" for field in fields(config)}
    for word in words:
        said = _option(word).partition(".")[0]
        if word.startswith("--") and said not in names:
            near = get_close_matches(said, names, 1)
            meant = f"; did you mean {names[near[0]]}?" if near else "."
            return f"there is no {word.partition('=')[0]}{meant}{_in_quotes(name, words, config)}"
    return ""


def _in_quotes(name: str, words: list[str], config: type[Any]) -> str:
    """The command to type where what looks like an option was said to the model."""
    speech, rest = _speech(config, words)
    command = shlex.join(["rusty", name, " ".join(speech), *rest])
    return f" If it is part of the request, type: {command}" if speech else ""


def _with_speech(config: type[Any], words: list[str]) -> list[str]:
    """`words` with a request that has dashes of its own (what does ls -l do) behind `--`, where none is read.

    Not with two dashes: what looks like an option and is none may be a slip (--dyr), and stays an error."""
    speech, rest = _speech(config, words)
    dashed = [word for word in speech if word.startswith("-")]
    slips = any(word.startswith("--") for word in dashed)
    return [*rest, "--", *speech] if dashed and not slips else words


def _speech(config: type[Any], words: list[str]) -> tuple[list[str], list[str]]:
    """What a person says, from the first plain word on, and the options between; ([], words) without."""
    hints = get_type_hints(config, include_extras=True)
    spoken = any(SPEECH in getattr(hint, "__metadata__", ()) for hint in hints.values())
    places = _nameless(words, hints) if spoken and "--" not in words else []
    if not places or words[places[0]].startswith("-"):
        return [], words
    return [words[at] for at in places], [word for at, word in enumerate(words) if at not in places]


def _boxed(box: str, name: str) -> str:
    """What tyro says below the title of its box, up to the next rule, as one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│ ") for line in plain.splitlines()[1:]]
    # where there are no letters for a box, a rule stands below the title
    inside = dropwhile(lambda line: not line.strip("-"), lines)
    body = " ".join(takewhile(lambda line: line.strip("╰╯─-"), inside))
    return body.replace(f"Missing from rusty {name}:", "missing:") or "this cannot be understood"


def _with_file(config: type[Any], options: list[str]) -> list[str]:
    """`options` with those of `--config FILE` put to them, where the command line says nothing else."""
    options = [
        part for word in options for part in (word.split("=", 1) if word[:9] == "--config=" else [word])
    ]
    if "--config" not in options or any(field.name == "config" for field in fields(config)):
        return options
    at = options.index("--config")
    if at + 1 == len(options):
        raise ConfigError("--config needs a file. Type: --config runs/NAME/config.json")
    rest = options[:at] + options[at + 2 :]
    hints = get_type_hints(config, include_extras=True)
    nameless = [key for key, hint in hints.items() if is_positional(hint)]
    typed = {_option(word) for word in rest if word.startswith("--")}
    typed |= set(nameless) if _nameless(rest, hints) else set()
    path = Path(options[at + 1])
    given = known_only(read(path), config, source=str(path))
    first = [word for key in nameless if key in given and key not in typed for word in _bare(given[key])]
    named = {key: value for key, value in given.items() if key not in typed and key not in nameless}
    return first + rest + [word for key, value in named.items() for word in _as_words(key, value)]


def is_positional(hint: Any) -> bool:
    import tyro

    return tyro.conf.Positional in getattr(hint, "__metadata__", ())


def _nameless(words: list[str], hints: dict[str, Any]) -> list[int]:
    """Where the words are that belong to no option: those for yes and no take none, lists all that follow."""
    taken, found = 0.0, []
    for at, word in enumerate(words):
        name = _option(word).partition(".")[0]
        if word.startswith("--") and name in (*hints, "help"):
            several = math.inf if get_origin(hints.get(name)) in (tuple, list) else 1
            taken = 0 if "=" in word or hints.get(name) in (bool, None) else several
        elif not taken:
            found.append(at)
        else:
            taken -= 1
    return found


def _bare(value: Any) -> list[str]:
    return [] if value is None else [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _option(word: str) -> str:
    return word.partition("=")[0].lstrip("-").replace("-", "_").removeprefix("no_")


def _as_words(key: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{key}" if value else f"--no-{key}"]
    if isinstance(value, list):
        return [f"--{key}", *(str(item) for item in value)] if value else []
    if isinstance(value, dict):
        return [word for inner, item in value.items() for word in _as_words(f"{key}.{inner}", item)]
    return [f"--{key}={value}"]  # one word: a value may begin with a dash


if __name__ == "__main__":
    sys.exit(main())
