# SPDX-License-Identifier: AGPL-3.0-or-later
"""Rows as tokens: where the completion begins, which of its tokens the model itself said, and in what order.

A completion of several turns holds what the gym or a tool answered; those tokens are read and never
learned, nor is the template's glue around them. Rows over the length are left out and counted, not cut.
The order is drawn anew for every pass by the seed alone, rows of one prompt apart (TRL pairs neighbours),
and the longest row comes first: what does not fit into memory fails in the first minute.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rusty_r2.agent.speech import disarmed
from rusty_r2.data import rows as room
from rusty_r2.data.validate import check_file
from rusty_r2.errors import DataError

HELD_OUT = 0.1
"""part of the prompts kept out of training where no file of held-out rows is given"""
FEW = 10
"""of fewer prompts none is kept out: they are all there is to learn from"""
Row = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """One prompt with one completion, as tokens."""

    prompt: list[int]
    completion: list[int]
    own: list[bool]
    """which tokens of the completion are the model's own words"""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


def load_rows(path: Path, kind: str) -> list[Row]:
    """The rows of a file that is what `kind` needs; else the first fault, with its line and field."""
    found = check_file(path, kind)
    if found.faults:
        more = f" (and {len(found.faults) - 1} more)" if len(found.faults) > 1 else ""
        raise DataError(f"{found.faults[0]}{more}. Type: rusty data validate {path} --kind {kind}")
    return room.load(path)


def split(
    path: Path, rows: list[Row], given: Path | None, kind: str, seed: int
) -> tuple[list[Row], list[Row]]:
    """(rows to learn from, rows held out): the file given, else the one beside, else one prompt in ten."""
    beside = given or (room.eval_path(path) if room.eval_path(path).is_file() else None)
    if beside is not None:
        held = load_rows(beside, kind)
        known = {_prompt_digest(row) for row in held}
        return [row for row in rows if _prompt_digest(row) not in known], held
    prompts = [_prompt_digest(row) for row in rows]
    enough = len(set(prompts)) >= FEW
    out = [enough and room.rank(seed, f"held out {prompt}") < HELD_OUT for prompt in prompts]
    return (
        [row for row, away in zip(rows, out, strict=True) if not away],
        [row for row, away in zip(rows, out, strict=True) if away],
    )


def _prompt_digest(row: Row) -> str:
    return room.digest(row.get("prompt") or row.get("messages", [None])[:-1] or row)


def encode(tokenizer: Any, prompt: room.Text, completion: room.Text) -> Said:
    """The tokens of a row as TRL makes them, and which of them are to be learned."""
    if isinstance(prompt, str) or isinstance(completion, str):
        return _plain(tokenizer, str(prompt), str(completion))
    before, after = [_turn(turn) for turn in prompt], [_turn(turn) for turn in completion]
    start = render(tokenizer, before, reply=True)
    whole = render(tokenizer, before + after)
    at = _shared(start, whole)
    own = [False] * len(whole)
    for number, turn in enumerate(after):
        if turn["role"] != "assistant":
            continue
        opened = render(tokenizer, before + after[:number], reply=True)
        closed = render(tokenizer, before + after[: number + 1])
        first, last = _shared(opened, whole), _shared(closed, whole)
        own[first:last] = [True] * (last - first)
    return Said(whole[:at], whole[at:], own[at:])


def _plain(tokenizer: Any, prompt: str, completion: str) -> Said:
    end = tokenizer.eos_token or ""
    text = completion if completion.endswith(end) else completion + end
    start, whole = tokenizer(prompt)["input_ids"], tokenizer(prompt + text)["input_ids"]
    at = _shared(start, whole)
    return Said(whole[:at], whole[at:], [True] * (len(whole) - at))


def render(tokenizer: Any, turns: Sequence[Row], *, reply: bool = False) -> list[int]:
    """A conversation as tokens by the model's own template; `reply` hands the word to the assistant."""
    if not tokenizer.chat_template:
        raise DataError(
            "the base model has no chat template, and the rows are conversations. Use an instruct model, "
            "or make plain rows: --form plain"
        )
    try:
        return list(
            tokenizer.apply_chat_template(
                list(turns), tokenize=True, add_generation_prompt=reply, return_dict=False
            )
        )
    except Exception as error:  # a template is a program of its maker's, and may refuse a role or an order
        said = str(error).split("\n")[0]
        raise DataError(f"the base model's chat template refuses a row: {said:.160}") from error


def heard(tokenizer: Any, row: Row) -> Row:
    """A row as the model hears it in use (agent/speech.py): ours has a role for what came of an action,
    borrowed models hear it from the user, and nobody's words hold a mark of the template."""
    if "<|observation|>" in (tokenizer.chat_template or ""):
        return row
    return {name: _from_user(text) if isinstance(text, list) else text for name, text in row.items()}


def _from_user(text: list[Any]) -> list[Any]:
    said: list[Any] = []
    for given in text:
        turn = _spoken(given) if isinstance(given, dict) else given
        if said and _same_voice(said[-1], turn):
            said[-1] = {**turn, "content": f"{said[-1]['content']}\n\n{turn['content']}"}
        else:
            said.append(turn)
    return said


def _same_voice(one: Any, other: Any) -> bool:
    """Whether two turns are words of one speaker and nothing else: nobody speaks twice in a row."""
    plain = [isinstance(turn, dict) and turn.keys() == {"role", "content"} for turn in (one, other)]
    texts = all(plain) and isinstance(one["content"], str) and isinstance(other["content"], str)
    return texts and bool(one["role"] == other["role"])


def _spoken(turn: Row) -> Row:
    role, content = turn.get("role"), turn.get("content")
    return {
        **turn,
        **({"role": "user"} if role in ("tool", "observation") else {}),
        **({"content": disarmed(content)} if isinstance(content, str) else {}),
    }


def _turn(turn: Row) -> Row:
    """Role and words; what the gym answered is a tool's word to our own template."""
    return {"role": "tool" if turn["role"] == "observation" else turn["role"], "content": turn["content"]}


def turns(text: room.Text) -> room.Text:
    """A row's prompt or completion as TRL is given it."""
    return text if isinstance(text, str) else [_turn(turn) for turn in text]


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def order(lengths: Sequence[int], prompts: Sequence[str], *, count: int, seed: int) -> list[int]:
    """`count` places of rows: pass after pass in an order of its own, the longest row first of all."""
    found: list[int] = []
    passes = 0
    while len(found) < count:
        places = list(range(len(lengths)))
        random.Random(f"{seed} {passes}").shuffle(places)
        found += room.apart(places, [prompts[place] for place in places])
        passes += 1
    longest = found.index(max(range(len(lengths)), key=lengths.__getitem__))
    found[0], found[longest] = found[longest], found[0]
    return found[:count]
