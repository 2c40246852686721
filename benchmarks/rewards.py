# SPDX-License-Identifier: AGPL-3.0-or-later
"""How often the rewards are wrong about real answers: honest ones called bad, broken ones called good.

    OMP_NUM_THREADS=1 python benchmarks/rewards.py [COUNT]

Honest: the reference solutions of MBPP with their own tests as the last lines, GSM8K's worked answers, turns
of recorded human dialogues. Broken: the same MBPP programs with a name misspelt in the body, or the tests of
the next problem. Dodged: words instead of code. Needs the shared data (RUSTY_SHARED, or ../shared).
"""

import itertools
import json
import lzma
import os
import re
import sys
from collections import Counter
from pathlib import Path

from rusty_r2.rewards.engine import RewardEngine
from rusty_r2.trace import ExecutionTrace

SHARED = Path(os.environ.get("RUSTY_SHARED", Path(__file__).parents[2] / "shared"))


def rows(name: str, count: int) -> list[dict]:
    with open(SHARED / "bench" / f"{name}.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in itertools.islice(file, count)]


def code(query: str, source: str, tests: list[str]) -> ExecutionTrace:
    body = source.strip().replace("\r", "") + "\n\n" + "\n".join(tests)
    return ExecutionTrace(user_query=query, final_response=f"```python\n{body}\n```")


def tests(row: dict) -> list[str]:
    return [*row["test_imports"], *row["test_list"]]


def misspelt(source: str) -> str:
    """The last name returned, misspelt: it parses, and fails when it runs."""
    return re.sub(r"return\b.*?\b([A-Za-z_]\w*)", lambda m: m[0] + "_x", source, count=1)


def dialogues(count: int) -> list[ExecutionTrace]:
    made = []
    with lzma.open(SHARED / "corpus" / "dialogue.jsonl.xz", "rt", encoding="utf-8") as file:
        for line in itertools.islice(file, 0, 40 * count, 40):
            turns = re.findall(r"^(User|Assistant): (.+)$", json.loads(line)["text"], re.M)
            made += [
                ExecutionTrace(user_query=asked, final_response=said)
                for (who, asked), (other, said) in itertools.pairwise(turns[:6])
                if (who, other) == ("User", "Assistant")
            ]
    return made[:count]


def sets(count: int) -> dict[str, tuple[bool, list[ExecutionTrace]]]:
    mbpp = rows("mbpp_sanitized", count)
    math = rows("gsm8k", count)
    others = mbpp[1:] + mbpp[:1]
    dodge = "You could loop over the input, keep what matters in a variable, and return it at the end."
    return {
        "MBPP, reference and tests": (True, [code(r["prompt"], r["code"], tests(r)) for r in mbpp]),
        "MBPP, reference alone": (True, [code(r["prompt"], r["code"], []) for r in mbpp]),
        "GSM8K, worked answers": (
            True,
            [ExecutionTrace(user_query=r["question"], final_response=r["answer"]) for r in math],
        ),
        "human dialogue": (True, dialogues(count)),
        "MBPP, a name misspelt": (
            False,
            [code(r["prompt"], misspelt(r["code"]), tests(r)) for r in mbpp],
        ),
        "MBPP, another's tests": (
            False,
            [code(r["prompt"], r["code"], tests(o)) for r, o in zip(mbpp, others, strict=True)],
        ),
        "MBPP, words for code": (
            False,
            [
                ExecutionTrace(user_query=r["prompt"], final_response=f"{dodge} ({r['task_id']})")
                for r in mbpp
            ],
        ),
    }


def main() -> None:
    if not SHARED.is_dir():
        sys.exit("needs the shared data: set RUSTY_SHARED to its folder")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    print(f"{'what':<28}{'traces':>8}{'good':>8}{'wrong':>8}   why")
    for name, (honest, traces) in sets(count).items():
        scores = [(trace, RewardEngine().score_all([trace])[0]) for trace in traces]
        good = sum((score.total or 0) >= 0.6 for _, score in scores)
        wrong = len(scores) - good if honest else good
        why = Counter(
            score.veto or next((r.error for r in score.results.values() if r.error), "")
            for _, score in scores
            if ((score.total or 0) >= 0.6) is not honest
        )
        told = "; ".join(f"{count} {reason[:60]}" for reason, count in why.most_common(3))
        print(f"{name:<28}{len(scores):>8}{good:>8}{wrong / max(1, len(scores)):>8.1%}   {told}")


if __name__ == "__main__":
    main()
