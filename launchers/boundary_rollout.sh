#!/usr/bin/env bash
# Boundary rollout: sampled episodes under a budget so small that every way to end is taken; fails if one is not.
# Needs what demo_cpu.sh needs, or a card with hardware=gpu.  Usage: launchers/boundary_rollout.sh [hydra overrides...];
# SEED=N, RUN=NAME, MODEL=DIR (default: a tiny model of random weights).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case " $* " in *" hardware=gpu "*) scripts/setup gpu ;; *) scripts/setup cpu ;; esac
export PATH="$PWD/.venv/bin:$PATH"
SEED="${SEED:-0}"
RUN="${RUN:-boundary-rollout-$(date -u +%Y%m%d-%H%M%S)}"
DATA="data/boundary-seed$SEED"

atlas-rl demo boundary --out "$DATA" --seed "$SEED"
python -m atlas_rl.cli.train experiment=boundary_rollout atlas.run.id="$RUN" atlas.run.seed="$SEED" \
    data.train_files="$DATA/rows.parquet" data.val_files="$DATA/rows.parquet" \
    actor_rollout_ref.model.path="${MODEL:-$DATA/model}" "$@"
exec atlas-rl check rollout "artifacts/$RUN" --all-reasons
