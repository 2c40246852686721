"""The shipped model loads without torch, speaks the protocol, and can be trained further."""

import subprocess
import sys

import pytest

from rusty_r2.agent.address import SHIPPED, MindOptions, open_policy
from rusty_r2.protocol import parse
from rusty_r2.trace import ExecutionTrace

pytestmark = pytest.mark.skipif(not list(SHIPPED.glob("model*")), reason="this checkout ships no model")


def test_it_answers_in_the_protocol_without_any_constraint():
    pytest.importorskip("tokenizers", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.agent.prompt import SYSTEM

    mind = open_policy("rusty", MindOptions(grammar=False, temperature=0.0, max_new_tokens=64))
    for request in ("list all files", "who are you?", "show the date"):
        reply = mind.reply(ExecutionTrace(user_query=request, system_prompt=SYSTEM))
        assert parse(reply.text)


def test_it_speaks_without_torch():
    program = (
        "import sys; from rusty_r2.agent.address import open_policy\n"
        "from rusty_r2.trace import ExecutionTrace\n"
        "open_policy('rusty').reply(ExecutionTrace(user_query='hi')); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_it_can_be_trained_further():
    torch = pytest.importorskip("torch", reason="pip install 'rusty-r2[train]'")
    from rusty_r2.lm import checkpoint

    model = checkpoint.load(SHIPPED)
    ids = torch.tensor([[1, 5, 100, 200]])
    loss, count, _ = model.loss(ids[:, :-1], ids[:, 1:])
    loss.backward()
    assert count == 3 and model.lm_head.weight.grad is not None
