# SPDX-License-Identifier: AGPL-3.0-or-later
"""How often the gate of the loop errs, for so many tasks.

    python benchmarks/gate_errors.py

`differ` is the share of tasks that only one of the two solves. The first table is exact: an equal model
refused, one that is 10 points worse let through, against the one in use alone. The second draws histories:
ten equally good versions in use one after another, then an equal one; a chain that loses 2 points a round.
"""

from __future__ import annotations

from math import comb

import numpy as np

from rusty_r2.eval.rates import LEVEL, sign_test
from rusty_r2.loop.gate import Measured, conclude

DIFFER = (0.1, 0.2, 0.3)
DRAWS = 400


def refused(tasks: int, lost: float, gained: float) -> float:
    """The chance of `worse`, where a task is only the old one's, only the new one's, with these chances."""
    total = 0.0
    for a in range(tasks + 1):
        for b in range(min(a, tasks - a + 1)):
            if sign_test(a, b) <= LEVEL:
                ways = comb(tasks, a) * comb(tasks - a, b)
                total += ways * lost**a * gained**b * (1 - lost - gained) ** (tasks - a - b)
    return total


def history(
    rng: np.random.Generator, tasks: int, differ: float, fall: float, rounds: int
) -> tuple[bool, float]:
    """Whether the last round was refused, and how many points the true rate of the one in use fell in all.

    A task is surely solved, surely not, or (a share of 2 `differ`) solved as a coin falls: two equal models
    then differ on `differ` of the tasks. A fall moves tasks from solved to not."""
    kept: dict[str, dict[str, dict[str, bool]]] = {}
    sure, in_use, known, last = 0.6, 0.0, None, False
    for number in range(rounds):
        mine = sure - fall * (number > 0) - in_use
        places = np.arange(tasks) / tasks
        coin = (places >= sure) & (places < sure + 2 * differ)
        solved = (places < mine) | (coin & (rng.random(tasks) < 0.5))
        new = {str(at): bool(good) for at, good in enumerate(solved)}
        said = conclude("x", measured=[Measured("tasks", known or new, new)], before=kept)
        last = said.worse
        if not last:
            known, in_use = new, in_use + fall * (number > 0)
            kept[str(number)] = {"tasks": new}
    return last, in_use


def main() -> None:
    print("tasks  differ  an equal one is refused  10 points worse passes")
    for tasks in (12, 32, 100, 200):
        for differ in DIFFER:
            equal = refused(tasks, differ / 2, differ / 2)
            passes = 1 - refused(tasks, (differ + 0.1) / 2, (differ - 0.1) / 2)
            print(f"{tasks:5}  {differ:6.0%}  {equal:23.1%}  {passes:22.1%}")
    rng = np.random.default_rng(0)
    print("tasks  differ  an equal one after ten is refused  2 points a round, ten rounds: lost in all")
    for tasks in (12, 200):
        for differ in (0.1, 0.2):
            equal = np.mean([history(rng, tasks, differ, 0.0, 11)[0] for _ in range(DRAWS)])
            fell = np.mean([history(rng, tasks, differ, 0.02, 11)[1] for _ in range(DRAWS)])
            print(f"{tasks:5}  {differ:6.0%}  {equal:33.1%}  {100 * fell:33.1f} points")


if __name__ == "__main__":
    main()
