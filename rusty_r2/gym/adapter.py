# SPDX-License-Identifier: AGPL-3.0-or-later
"""CodingEnv as a `gymnasium.Env`, for libraries that insist on the class. Needs `pip install gymnasium`.

Actions and observations are texts of any length and any characters, so the space says just that.
"""

from __future__ import annotations

from typing import Any, ClassVar

from rusty_r2.errors import need
from rusty_r2.gym.env import CodingEnv
from rusty_r2.protocol import example


def gymnasium_env(env: CodingEnv) -> Any:
    """`env` with Gymnasium's base class and spaces."""
    gymnasium = need("gymnasium", extra="dev")
    spaces = need("gymnasium.spaces", extra="dev")

    class AnyText(spaces.Space):  # type: ignore[misc, name-defined]
        """Every text. A sample is a harmless action, so that a random player is a possible one."""

        def __init__(self) -> None:
            super().__init__(shape=(), dtype=str)

        @property
        def is_np_flattenable(self) -> bool:
            return False

        def sample(self, mask: Any = None, probability: Any = None) -> str:
            return example("MSG").partition("like ")[2]

        def contains(self, x: Any) -> bool:
            return isinstance(x, str)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, AnyText)

        __hash__ = None  # type: ignore[assignment]

    class Adapted(gymnasium.Env):  # type: ignore[misc, name-defined]
        metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
        action_space = AnyText()
        observation_space = AnyText()

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            return env.reset(seed=seed, options=options)

        def step(self, action: str) -> Any:
            return env.step(action)

        def close(self) -> None:
            env.close()

    return Adapted()
