# SPDX-License-Identifier: AGPL-3.0-or-later
"""The front door: `rusty chat` and `rusty ask` with everything connected, and what `make run` does.

    python -m rusty_r2.welcome

On a terminal that is `rusty chat`. Without one (a build machine, a pipe) Rusty follows a short script in a
temporary folder: it runs a failing test, repairs the code, runs the test again and answers. The
commands run in the real sandbox; only the mind is scripted.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from rusty_r2.agent import terminal
from rusty_r2.agent.policy import ScriptedPolicy
from rusty_r2.agent.terminal import AskConfig, ChatConfig
from rusty_r2.errors import RustyError
from rusty_r2.protocol import Cmd, Edit, Msg, render
from rusty_r2.trace import ExecutionTrace

BROKEN = "def total(numbers):\n    return sum(numbers[1:])\n"
MENDED = "def total(numbers):\n    return sum(numbers)\n"
TEST = "from total import total\n\nassert total([1, 2, 3]) == 6, total([1, 2, 3])\nprint('total: ok')\n"
SCRIPT = (
    render(Cmd("python3 test_total.py 2>&1 | tail -1")),
    render(Edit("total.py", MENDED)),
    render(Cmd("python3 test_total.py")),
    render(Msg("The sum skipped its first number. Now it does not. You're welcome.")),
)


def chat(config: ChatConfig) -> None:
    """Talk to Rusty in a folder of yours."""
    terminal.chat(config, score=score)


def ask(config: AskConfig) -> None:
    """One request, one answer."""
    terminal.ask(config, score=score)


def score(trace: ExecutionTrace) -> str:
    """What a trace is worth, in its parts."""
    from rusty_r2.rewards.engine import RewardEngine

    return str(RewardEngine().score(trace))


def demonstrate() -> None:
    """Four scripted steps in a temporary folder, in the real sandbox."""
    with tempfile.TemporaryDirectory(prefix="rusty-") as name:
        folder = Path(name)
        (folder / "total.py").write_text(BROKEN, encoding="utf-8")
        (folder / "test_total.py").write_text(TEST, encoding="utf-8")
        print("No terminal here, so this is a scripted session in the real sandbox:\n", flush=True)
        config = AskConfig(query=("fix total.py",), workspace=folder, ask="never", store=False)
        terminal.ask(config, policy=ScriptedPolicy(*SCRIPT))
    print(f"\nnext, on a terminal: {_entrance()}rusty chat")


def _entrance() -> str:
    """How to come where `rusty` is a command, where it is not one already."""
    own = Path(sys.prefix) / "bin"
    return "" if shutil.which("rusty") else f". {shlex.quote(str(own))}/activate && "


def main() -> int:
    try:
        if sys.stdin.isatty() and sys.stdout.isatty():
            chat(ChatConfig())
            print(f"again, in any folder: {_entrance()}rusty chat")
        else:
            demonstrate()
    except RustyError as error:
        print(f"rusty: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
