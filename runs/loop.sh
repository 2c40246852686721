#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-or-later
# The loop with SmolLM2, offline: a demonstration round, and a poisoned one that is refused.
#
#     sh runs/loop.sh                 about ten minutes of one core for the first round (docs/log.md has the figures)
set -eu
PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"
small="--max-steps 8 --batch-size 4 --accumulate 1 --max-length 256 --tasks 0"
rusty loop --name agent --source demo --method kto --learning-rate 5e-4 $small
rusty models agent
rusty loop --name agent --source poison --method sft --learning-rate 2e-3 $small    # trained, tried, refused
rusty models agent
echo "next: rusty chat --model agent"
