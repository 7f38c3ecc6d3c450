#!/usr/bin/env bash
# Two PPO steps on real questions with real model solutions, by a real pretrained model, without a GPU.
# Needs what demo_cpu.sh needs, and about half an hour of two quiet cores.
# Usage: launchers/smoke_gsm8k_cpu.sh SOLUTIONS_JSONL MODEL_DIR [hydra overrides...]
# SOLUTIONS_JSONL is example_model_solutions.jsonl of grade-school-math. MODEL_DIR is a Hugging Face folder with the tool
# tokens; if it does not exist yet, SmolLM2-135M-Instruct is converted and warm-started into it.
set -euo pipefail
SOLUTIONS="$(realpath "${1:?give SOLUTIONS_JSONL, the file of model solutions}")"
MODEL="$(realpath -m "${2:?give MODEL_DIR, a model folder; it is made if absent}")"
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup cpu smollm2
export PATH="$PWD/.venv/bin:$PATH"
SEED="${SEED:-0}"
RUN="${RUN:-smoke-gsm8k-$(date -u +%Y%m%d-%H%M%S)}"
DATA="data/gsm8k-seed$SEED"
SECONDS=0

atlas-rl data gsm8k "$SOLUTIONS" --out "$DATA" --seed "$SEED" --num-val 32
[ -e "$MODEL" ] || atlas-rl model smollm2 --out "$MODEL" --demonstrations "$DATA/train.parquet" --seed "$SEED"
python -m atlas_rl.cli.train experiment=gsm8k_smoke atlas.run.id="$RUN" atlas.run.seed="$SEED" \
    data.train_files="$DATA/train.parquet" data.val_files="$DATA/val.parquet" actor_rollout_ref.model.path="$MODEL" "$@"
exec atlas-rl run summary "artifacts/$RUN" --label smoke --seconds "$SECONDS"
