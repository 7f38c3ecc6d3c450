#!/usr/bin/env bash
# Smoke rollout: sampled episodes with room for all of them, no training; their records are read back and checked.
# Needs what demo_cpu.sh needs, or a card with hardware=gpu.  Usage: launchers/smoke_rollout.sh [hydra overrides...];
# SEED=N, RUN=NAME, MODEL=DIR and VAL=PARQUET (default: the demo's).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case " $* " in *" hardware=gpu "*) scripts/setup gpu ;; *) scripts/setup cpu ;; esac
export PATH="$PWD/.venv/bin:$PATH"
SEED="${SEED:-0}"
RUN="${RUN:-smoke-rollout-$(date -u +%Y%m%d-%H%M%S)}"
DEMO="data/demo-seed$SEED"

[ -n "${MODEL:-}" ] && [ -n "${VAL:-}" ] || atlas-rl demo prepare --out "$DEMO" --seed "$SEED"
MODEL="${MODEL:-$DEMO/model}" VAL="${VAL:-$DEMO/val.parquet}"
python -m atlas_rl.cli.train experiment=smoke_rollout atlas.run.id="$RUN" atlas.run.seed="$SEED" \
    data.train_files="$VAL" data.val_files="$VAL" actor_rollout_ref.model.path="$MODEL" "$@"
exec atlas-rl check rollout "artifacts/$RUN"
