"""What the gym's tests share."""

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
