# SPDX-License-Identifier: AGPL-3.0-or-later
"""Procedural families: thousands of tasks each, drawn from a seed. See base.py for the splits."""

from __future__ import annotations

from rusty_r2.gym.families import ask, files, fix, text, write
from rusty_r2.gym.families.base import SPLITS, Draw, Family, fingerprint

FAMILIES: dict[str, Family] = {
    family.name: family for module in (write, fix, files, text, ask) for family in module.FAMILIES
}

__all__ = ["FAMILIES", "SPLITS", "Draw", "Family", "fingerprint"]
