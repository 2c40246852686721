#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-or-later
# A mind from nothing: tokenizer → corpus → supervised → episodes → supervised → PPO → eval → chat.
#
#     sh runs/from_nothing.sh                     some minutes on two cores, all in the folder story/
#     STEPS=2000 PRESET=micro sh runs/from_nothing.sh better     longer is better, in the folder better/
#
# The text is Python's own library, so nothing is downloaded. Started again, training goes on where it stopped.
# The real one (the shipped model) was made by the same commands with more text and a GPU: docs/log.md.
set -eu
PRESET=${PRESET:-nano}          # model size: nano, micro, tiny (the seeds' size), small, base
WORDS=${WORDS:-4000}            # words of the tokenizer
MB=${MB:-6}                     # megabytes of text
STEPS=${STEPS:-100}             # supervised steps, each time
GYM=${GYM:-400}                 # gym tasks played for the episodes
REPLIES=${REPLIES:-384}         # replies of PPO in all,
ROUND=${ROUND:-96}              # and between two updates
LIMIT=${LIMIT:-24}              # items of each measure
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"
library=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
mkdir -p "${1:-story}" && cd "${1:-story}"
last=step_$(printf %06d "$STEPS")
step() { printf '\n\033[1m── %s\033[0m\n' "$1"; }

step "text and a tokenizer of its own"
[ -d text ] || { mkdir text && cp "$library"/*.py text/; }
[ -f tokenizer/tokenizer.json ] || rusty lm tokenizer --data-dir text --vocab-size "$WORDS" --output-dir tokenizer
[ -f corpus/manifest.json ] || rusty data corpus --source text --tokenizer tokenizer --max-mb "$MB" --output-dir corpus

step "a model that foretells text"
rusty train supervised --data-dir corpus --tokenizer-path tokenizer --preset "$PRESET" --max-steps "$STEPS" \
    --checkpoints-dir base --resume auto

step "episodes in the protocol, played in the gym; the same model learns to answer"
[ -f episodes.jsonl ] || rusty data episodes --gym "$GYM" --lessons "$GYM" --functions 0 --output episodes.jsonl
rusty train supervised --data-dir episodes.jsonl --tokenizer-path tokenizer --init "base/$last" --max-steps "$STEPS" \
    --seq-len 512 --batch-size 4 --checkpoints-dir answers --resume auto

step "practice with rewards: PPO in the gym, on its easiest tasks"
rusty train ppo --init-checkpoint "answers/$last" --total-timesteps "$REPLIES" --num-steps "$ROUND" --max-turns 1 \
    --max-difficulty 1 --max-new-tokens 48 --eval-tasks "$LIMIT" --constrain --checkpoints-dir practised --resume auto

step "measured: before and after practice, side by side"
rusty eval answers practised --measures actions gym commands safety speed --limit "$LIMIT" --samples 2 \
    --trained-on episodes.jsonl --out eval

step "and asked"
printf 'who are you?\n:q\n' | rusty chat --model practised --max-new-tokens 40 --no-store
echo "next: rusty chat --model $(pwd)/practised"
