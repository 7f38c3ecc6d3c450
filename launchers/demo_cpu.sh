#!/usr/bin/env bash
# The main job on a machine without a GPU: a tiny policy that explores too long learns to stop, with real verl and vLLM.
# Needs git, Python 3.11 or 3.12, 2 cores, 24 GiB.  Usage: launchers/demo_cpu.sh [hydra overrides...]; SEED=N, RUN=NAME.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup cpu
export PATH="$PWD/.venv/bin:$PATH"
SEED="${SEED:-0}"
RUN="${RUN:-demo-seed$SEED-$(date -u +%Y%m%d-%H%M%S)}"
SECONDS=0

atlas-rl demo prepare --out "data/demo-seed$SEED" --seed "$SEED"
python -m atlas_rl.cli.train experiment=urn_demo atlas.run.id="$RUN" atlas.run.seed="$SEED" \
    data.train_files="data/demo-seed$SEED/train.parquet" data.val_files="data/demo-seed$SEED/val.parquet" \
    actor_rollout_ref.model.path="data/demo-seed$SEED/model" "$@"
exec atlas-rl run summary "artifacts/$RUN" --label demo --val-file "data/demo-seed$SEED/val.parquet" --seconds "$SECONDS"
