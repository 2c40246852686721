# SPDX-License-Identifier: AGPL-3.0-or-later
"""The environment in Gymnasium's own class."""

import pytest

from rusty_r2.gym.adapter import gymnasium_env
from rusty_r2.gym.env import CodingEnv

checker = pytest.importorskip(
    "gymnasium.utils.env_checker", reason="gymnasium is not installed; to run this: pip install gymnasium"
)


@pytest.mark.usefixtures("confined")
def test_the_gymnasium_checker_is_content():
    checker.check_env(gymnasium_env(CodingEnv()), skip_render_check=True)
