# SPDX-License-Identifier: AGPL-3.0-or-later
"""A file in a running llama.cpp beside the model it was made of: words, prompts, predictions, tasks.

Each function answers with a Finding. `tokens` and `prompts` must be equal; `predictions` may differ by what
the type costs (BOUNDS). The divergence is taken over llama.cpp's 512 likeliest words and all others as one: a
coarser view, so never more than the whole divergence, and exact for what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rusty_r2.errors import PolicyError, need
from rusty_r2.eval.rates import Rate, paired
from rusty_r2.export import vocabulary
from rusty_r2.export.contents import Finding
from rusty_r2.export.hard import CONVERSATIONS, HELD_OUT, STRINGS
from rusty_r2.export.source import Source
from rusty_r2.lm.llama import Llama

TOP = 512
"""words of which llama.cpp tells the probability"""
TURNS = 4
"""replies in an episode of a task"""
FIRST = 16
"""tokens of context before the first prediction that counts"""


@dataclass(frozen=True)
class Bound:
    agreement: float
    """at least this share of next words the same, as far as the interval can tell"""
    kl: float
    """at most this mean divergence, in nats"""


BOUNDS = {
    "F32": Bound(0.98, 0.001),
    "F16": Bound(0.98, 0.001),
    "BF16": Bound(0.95, 0.01),
    "Q8_0": Bound(0.95, 0.02),
    "Q6_K": Bound(0.90, 0.03),
    "Q5_K_M": Bound(0.82, 0.10),
    "Q4_K_M": Bound(0.80, 0.15),
    "Q3_K_M": Bound(0.65, 0.40),
    "Q2_K": Bound(0.45, 1.20),
}
"""what a type may cost, with room for models that take it worse than those of docs/export.md"""


def tokens(llama: Llama, source: Source) -> Finding:
    """Hard strings become the same ids, with control words as text and as control tokens."""
    tokenizer = vocabulary.load(source.folder)
    left_out, wrong = 0, []
    for text in STRINGS:
        if tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str(text) != text:
            left_out += 1  # llama.cpp does not normalise: such a text is other words to it
            continue
        for special in (False, True):
            tokenizer.encode_special_tokens = not special
            if tokenizer.encode(text, add_special_tokens=False).ids != llama.tokenize(text, special=special):
                wrong.append(text)
    said = f"{len(STRINGS) - left_out} hard strings, read as text and with control tokens"
    if left_out:
        said += f"; {left_out} left out that the model's tokenizer rewrites and llama.cpp does not"
    if wrong:
        said = f"{len(set(wrong))} strings become other tokens, first {wrong[0]!a:.40}"
    return Finding("tokens", not wrong, said, {"strings": len(STRINGS) - left_out, "wrong": len(set(wrong))})


def prompts(llama: Llama, source: Source) -> Finding:
    """Conversations become the same prompt, letter by letter."""
    template = vocabulary.chat_template(source.folder)
    if not template:
        return Finding("prompts", True, "the model has no chat template to compare with", {"wrong": 0})
    transformers = need("transformers", extra="train")
    dressed = transformers.PreTrainedTokenizerFast.from_pretrained(str(source.folder), local_files_only=True)
    dressed.chat_template = template
    read = vocabulary.read(source.folder, source.words)
    begin = read.tokens[read.special["bos"]] if read.add_bos else ""
    wrong, compared = [], 0
    for messages in CONVERSATIONS:
        wanted, found = _rendered(dressed, messages), _asked(llama, messages)
        wanted = wanted and wanted.removeprefix(begin)  # llama.cpp adds it where it reads the prompt
        compared += wanted is not None
        if wanted != found:
            wrong.append(f"{found!a:.60} where the model's template gives {wanted!a:.60}")
    said = f"{compared} conversations, letter by letter" if not wrong else f"{len(wrong)} differ: {wrong[0]}"
    return Finding("prompts", not wrong, said, {"conversations": compared, "wrong": len(wrong)})


def predictions(llama: Llama, source: Source, quantization: str, positions: int, text: str = "") -> Finding:
    """The next word after many places of a text is the same, and so are the odds, within bounds."""
    tokenizer = vocabulary.load(source.folder)
    ids = tokenizer.encode(text or HELD_OUT).ids[: min(llama.context - 8, FIRST + 2 * positions)]
    places = np.unique(np.linspace(min(FIRST, len(ids) // 2), len(ids) - 1, positions).astype(int))
    exact = _distributions(source.folder, ids, places)
    same, kls = [], []
    for row, place in zip(exact, places, strict=True):
        theirs = llama.next_logprobs(ids[: place + 1], top=min(TOP, llama.words))
        same.append(int(row.argmax()) == int(np.nan_to_num(theirs, nan=-np.inf).argmax()))
        kls.append(divergence(row, theirs))
    agreement, kl, bound = Rate(sum(same), len(same)), float(np.mean(kls)), BOUNDS[quantization]
    said = (
        f"next word the same {agreement} at {len(places)} places "
        f"(the interval must reach {bound.agreement:.0%}), KL {kl:.2g} nats (at most {bound.kl:g})"
    )
    good = agreement.high >= bound.agreement and kl <= bound.kl
    measured = {"agreement": agreement.share, "kl": kl, "places": float(len(places))}
    return Finding("predictions", good, said, measured)


def divergence(exact: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    """KL in nats over the words that `theirs` names and the rest together; nan where that is nan."""
    named = ~np.isneginf(theirs)
    p, q = exact[named].astype(np.float64), theirs[named].astype(np.float64)
    found = float(np.sum(np.exp(p) * (p - q)))
    if named.all():
        return found
    p_rest, q_rest = (max(1e-9, 1.0 - float(np.exp(x).sum())) for x in (p, q))
    return found + p_rest * float(np.log(p_rest / q_rest))


def tasks(file: Path, base: str, count: int) -> Finding:
    """Held-out tasks of the gym: the file loses no more of `base`'s than chance takes from equals."""
    mine, theirs = (_played(address, count) for address in (f"gguf:{file}", base))
    found = paired(theirs, mine)
    measured = {"file": found.new.share, "base": found.old.share, "tasks": float(found.new.total)}
    if not found.new.total:
        return Finding("tasks", False, "nothing could be counted. Type: rusty doctor", measured)
    said = f"file {found.new}, {base} {found.old}, {found} held-out tasks"
    return Finding("tasks", not found.worse(), said, measured)


def _played(address: str, count: int) -> dict[str, bool]:
    from rusty_r2.eval import gym

    played = gym.counted(address, count, shown=4, longest=gym.LONGEST, turns=TURNS)
    return {one.task.name: one.passed for one in played}


def _distributions(folder: Path, ids: list[int], places: NDArray[Any]) -> NDArray[np.float32]:
    """Log-probabilities after each place, by transformers in float32."""
    torch = need("torch", extra="train")
    transformers = need("transformers", extra="train")
    with _no_bars():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.float32, local_files_only=True
        ).eval()
    with torch.no_grad():
        kept = torch.tensor(places)
        logits = model(input_ids=torch.tensor([ids]), logits_to_keep=kept, use_cache=False).logits[0]
        found: NDArray[np.float32] = torch.log_softmax(logits.float(), -1).numpy()
    return found


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without transformers' own progress bars."""
    logging = need("transformers.utils.logging", extra="train")
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()


def _rendered(tokenizer: Any, messages: Sequence[dict[str, str]]) -> str | None:
    """By Hugging Face; None where the template refuses the conversation."""
    need("jinja2", extra="export")
    from jinja2.exceptions import TemplateError

    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    except TemplateError:
        return None


def _asked(llama: Llama, messages: Sequence[dict[str, str]]) -> str | None:
    try:
        return llama.render(list(messages))
    except PolicyError:
        return None
