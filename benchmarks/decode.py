# SPDX-License-Identifier: AGPL-3.0-or-later
"""Decoding on one core against the others: Hugging Face's RwkvForCausalLM, the `rwkv` package, plain PyTorch.

    OMP_NUM_THREADS=1 python benchmarks/decode.py [--tries 7] [--json decode.json]

One set of random weights for all (512 wide, 4 layers, 24,000 words; d_embed = 512 with an identity
projection, so that all compute the same numbers, which is checked first). All rivals run in turns in this
one process; a figure is CPU seconds, best of the tries, with the spread (worst/best) beside it. The floor is
what reading the weights once costs at the bandwidth measured here by summing an array of the same size.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RWKV_JIT_ON", "1")
os.environ.setdefault("RWKV_V7_ON", "0")
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from rusty_r2.lm.engine import Engine  # noqa: E402
from rusty_r2.lm.rwkv import TinyRWKVLM  # noqa: E402
from rusty_r2.lm.sampling import Sampling  # noqa: E402
from rusty_r2.lm.shape import Shape, random_source  # noqa: E402

WORDS, WIDTH, LAYERS = 24_000, 512, 4
STEPS = 12
GREEDY, HOT = Sampling(temperature=0.0), Sampling(temperature=1.0)
Times = dict[str, list[float]]


def race(rivals: dict[str, Callable[[], object]], tries: int) -> Times:
    """CPU seconds of each rival, taking turns."""
    times: Times = {name: [] for name in rivals}
    for run in rivals.values():
        run()
    for _ in range(tries):
        for name, run in rivals.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return times


def show(title: str, times: Times, tokens: int, report: dict[str, Any]) -> dict[str, float]:
    rates = {name: tokens / min(seconds) for name, seconds in times.items()}
    print(f"\n{title}")
    for name, rate in rates.items():
        spread = max(times[name]) / min(times[name])
        print(f"  {name:<34} {rate:>8,.0f} tok/CPU-s   ({1000 / rate:.3f} ms a token, spread {spread:.2f})")
    report[title] = {name: round(rate, 1) for name, rate in rates.items()}
    return rates


def weights() -> dict[str, np.ndarray]:
    source = random_source(Shape(WORDS, WIDTH, WIDTH, 4 * WIDTH, LAYERS))
    return source.arrays | {"embed_proj.weight": np.eye(WIDTH, dtype=np.float32)}


def blink_names(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """The names of BlinkDL's checkpoints, which the `rwkv` package reads."""
    found = {}
    for name, array in arrays.items():
        if name.startswith(("embed_proj", "value_head")):
            continue
        name = name.replace("token_embedding", "emb").replace("ln_in", "blocks.0.ln0").replace("attn", "att")
        name = name.replace("lm_head", "head")
        tensor = torch.from_numpy(array)
        found[name] = tensor.reshape(1, 1, -1) if "time_mix" in name else tensor
    return found


def hugging_face(arrays: dict[str, np.ndarray]) -> Any:
    from transformers import RwkvConfig, RwkvForCausalLM

    sizes = {
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 4 * WIDTH,
    }
    model = RwkvForCausalLM(
        RwkvConfig(**sizes, context_length=4096, tie_word_embeddings=False, rescale_every=0)
    )
    renamed = {}
    for name, tensor in blink_names(arrays).items():
        name = name.replace("emb.", "rwkv.embeddings.").replace("ln_out", "rwkv.ln_out")
        name = (
            name.replace("blocks.", "rwkv.blocks.").replace("ln0", "pre_ln").replace(".att.", ".attention.")
        )
        name = (
            name.replace(".ffn.", ".feed_forward.").replace("mix_k", "mix_key").replace("mix_v", "mix_value")
        )
        renamed[name.replace("mix_r", "mix_receptance")] = tensor
    model.load_state_dict(renamed)
    return model.eval()


def rwkv_package(arrays: dict[str, np.ndarray]) -> Any | None:
    try:
        from rwkv.model import RWKV
    except ModuleNotFoundError:
        print("the rwkv package is not installed; to have it in the race: pip install rwkv")
        return None
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "model"
        torch.save(blink_names(arrays), f"{path}.pth")
        return RWKV(model=str(path), strategy="cpu fp32")


def ours_in_torch(arrays: dict[str, np.ndarray]) -> TinyRWKVLM:
    model = TinyRWKVLM(WORDS, WIDTH, WIDTH, LAYERS)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return model.eval()


def hf_loop(model: Any, steps: int, *, logp: bool = False) -> torch.Tensor:
    state, token = None, torch.tensor([[20]])
    with torch.inference_mode():
        for _ in range(steps):
            out = model(token, state=state, use_cache=True)
            state, logits = out.state, out.logits[:, -1]
            token = _drawn(logits) if logp else logits.argmax(-1, keepdim=True)
    return logits


def _drawn(logits: torch.Tensor) -> torch.Tensor:
    scores = logits.log_softmax(-1)
    token = torch.multinomial(scores.exp(), 1)
    scores.gather(1, token)
    return token


def pip_loop(model: Any, steps: int) -> torch.Tensor:
    state, token = None, 20
    for _ in range(steps):
        logits, state = model.forward([token], state)
        token = int(logits.argmax())
    return logits


def torch_loop(model: TinyRWKVLM, rows: int, steps: int) -> None:
    state, token = model.initial_state(rows), torch.full((rows,), 20)
    with torch.inference_mode():
        for _ in range(steps):
            logits, _, state = model.advance(token, state)
            token = _drawn(logits)[:, 0]


def engine_loop(engine: Engine, rows: int, steps: int, sampling: Sampling) -> None:
    state, tokens = engine.new_state(rows), np.full(rows, 20, np.int32)
    for step in range(steps):
        tokens = engine.sample(tokens, state, sampling, counts=[step] * rows).tokens


def check(hf: Any, pip: Any | None, engines: dict[str, Engine]) -> None:
    """All read the same words and say the same before anyone runs."""
    ids = np.random.default_rng(1).integers(16, WORDS, 32).tolist()
    with torch.inference_mode():
        exact = hf(torch.tensor([ids])).logits[0, -1].numpy()
    print(f"mean difference to Hugging Face after 32 words (logits up to {np.abs(exact).max():.1f}):")
    if pip is not None:
        print(f"  rwkv package   {np.abs(pip.forward(ids, None)[0].numpy() - exact).mean():.1e}")
    for name, engine in engines.items():
        logits = engine.prefill([ids], engine.new_state(1)).logits[0]
        print(f"  ours, {name:<8} {np.abs(logits - exact).mean():.1e}")


def bandwidth(megabytes: float) -> float:
    """GB/s of reading an array of this size, best of 20."""
    array = np.ones(int(megabytes * 1e6 / 8), np.int64)
    best = min(race({"sum": array.sum}, 20)["sum"])
    return array.nbytes / best / 1e9


def single_stream(
    hf: Any, pip: Any | None, engines: dict[str, Engine], tries: int, report: dict[str, Any]
) -> None:
    rivals: dict[str, Callable[[], object]] = {"Hugging Face, loop with state": lambda: hf_loop(hf, STEPS)}
    if pip is not None:
        rivals["rwkv package, fp32"] = lambda: pip_loop(pip, STEPS)
    for name, engine in engines.items():
        rivals[f"ours, {name}"] = lambda e=engine: engine_loop(e, 1, STEPS, GREEDY)  # type: ignore[misc]
    rates = show("single stream, greedy", race(rivals, tries), STEPS, report)
    best = max(rate for name, rate in rates.items() if not name.startswith("ours"))
    megabytes = 13 * WIDTH * WIDTH * LAYERS + WIDTH * WORDS + WIDTH * WIDTH
    for name, bits, goal in (("int8", 8, 5.5), ("int4", 4.25, 6.0)):
        size = megabytes * bits / 8 / 1e6
        speed = bandwidth(size)
        ours = rates[f"ours, {name}"]
        floor = 1e3 * speed / size
        report[f"{name} / best other"] = round(ours / best, 2)
        report[f"{name} / bandwidth floor"] = round(ours / floor, 2)
        print(
            f"  {name}: {ours / best:.2f}x the better of the others (goal {goal}); "
            f"{ours / floor:.0%} of the floor"
        )
        print(f"        of reading {size:.1f} MB a token at {speed:.1f} GB/s ({floor:,.0f} tok/s)")


def rollouts(
    model: TinyRWKVLM, hf: Any, engines: dict[str, Engine], tries: int, report: dict[str, Any]
) -> None:
    alone = race({"hf": lambda: hf_loop(hf, 4, logp=True)}, tries)
    hf_rate = 4 / min(alone["hf"])
    print(
        f"\nHugging Face one by one with log-probabilities (its batches are wrong): {hf_rate:,.0f} tok/CPU-s"
    )
    for rows in (16, 64):
        rivals: dict[str, Callable[[], object]] = {"PyTorch, eager": lambda n=rows: torch_loop(model, n, 2)}  # type: ignore[misc]
        for name in ("int8", "int4", "fp32"):
            rivals[f"ours, {name}"] = lambda e=engines[name], n=rows: engine_loop(e, n, 2, HOT)  # type: ignore[misc]
        rates = show(f"{rows} rows with log-probabilities", race(rivals, tries), 2 * rows, report)
        for name in ("int8", "int4"):
            ours = rates[f"ours, {name}"]
            ratio, far = ours / rates["PyTorch, eager"], ours / hf_rate
            report[f"{rows} rows {name} / eager, / Hugging Face"] = [round(ratio, 2), round(far, 1)]
            print(f"  {name}: {ratio:.2f}x eager PyTorch (goal 6), {far:.1f}x Hugging Face (goal 20)")


def prefill(
    model: TinyRWKVLM, hf: Any, engines: dict[str, Engine], tries: int, report: dict[str, Any]
) -> None:
    ids = np.random.default_rng(0).integers(16, WORDS, (4, 128))
    tensor = torch.from_numpy(ids)

    def parallel() -> None:
        with torch.inference_mode():
            hidden, _ = model.trunk(tensor, model.initial_state(4))
            model.head(hidden[:, -1])

    def theirs() -> None:
        with torch.inference_mode():
            hf(tensor, use_cache=True, logits_to_keep=1)

    rivals: dict[str, Callable[[], object]] = {"Hugging Face": theirs, "PyTorch fp32, parallel": parallel}
    for name in ("fp32", "int8", "int4"):
        rivals[f"ours, {name}"] = lambda e=engines[name]: e.prefill(ids.tolist(), e.new_state(4)).logits  # type: ignore[misc]
    rates = show("prefill, 4 prompts of 128", race(rivals, max(3, tries // 2)), ids.size, report)
    ratio = rates["ours, int8"] / rates["PyTorch fp32, parallel"]
    report["prefill int8 / PyTorch fp32"] = round(ratio, 2)
    print(f"  int8: {ratio:.2f}x PyTorch fp32 (goal 3)")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tries", type=int, default=7)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)
    arrays = weights()
    hf, pip, model = hugging_face(arrays), rwkv_package(arrays), ours_in_torch(arrays)
    engines = {
        name: Engine.from_model(model, weights=name, threads=1) for name in ("fp32", "bf16", "int8", "int4")
    }
    print(f"torch {torch.__version__}, engine {engines['int8'].backend}, load {os.getloadavg()[0]:.1f}")
    check(hf, pip, engines)
    report: dict[str, Any] = {}
    single_stream(hf, pip, engines, given.tries, report)
    rollouts(model, hf, engines, max(3, given.tries // 2), report)
    prefill(model, hf, engines, given.tries, report)
    if given.json:
        given.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
