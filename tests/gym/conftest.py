"""What the gym's tests share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rusty_r2.errors import SandboxError
from rusty_r2.gym.sandbox import open_sandbox


@pytest.fixture(scope="session")
def confined():
    """A machine on which some sandbox level works."""
    try:
        open_sandbox().close()
    except SandboxError:
        pytest.skip("no sandbox level works on this machine")


ALONE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("alone", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
getattr(module, sys.argv[2])(*map(int, sys.argv[3:]))
"""


@pytest.fixture
def alone(request, tmp_path):
    """Call a function of the test's own file in a fresh process, where nothing of another test is open."""

    def call(name, *numbers):
        command = [sys.executable, "-W", "error", "-c", ALONE, request.path, name, *map(str, numbers)]
        root = Path(__file__).resolve().parents[2]
        paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        env = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": paths}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stdout + done.stderr

    return call
