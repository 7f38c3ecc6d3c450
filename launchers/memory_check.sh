#!/usr/bin/env bash
# Memory check: full-length synthetic rows through actor and critic, long contexts, one real step; fails below the margin.
# Needs what demo_cpu.sh needs, or a card with hardware=gpu.  Usage: launchers/memory_check.sh [hydra overrides...];
# SEED=N, RUN=NAME, MODEL=DIR and TRAIN=PARQUET (default: the demo's), MIN_MARGIN_GIB=X (default 0).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case " $* " in *" hardware=gpu "*) scripts/setup gpu ;; *) scripts/setup cpu ;; esac
export PATH="$PWD/.venv/bin:$PATH"
SEED="${SEED:-0}"
RUN="${RUN:-memory-check-$(date -u +%Y%m%d-%H%M%S)}"
DEMO="data/demo-seed$SEED"

[ -n "${MODEL:-}" ] && [ -n "${TRAIN:-}" ] || atlas-rl demo prepare --out "$DEMO" --seed "$SEED"
MODEL="${MODEL:-$DEMO/model}" TRAIN="${TRAIN:-$DEMO/train.parquet}"
python -m atlas_rl.cli.train experiment=memory_check atlas.run.id="$RUN" atlas.run.seed="$SEED" \
    data.train_files="$TRAIN" data.val_files="$TRAIN" actor_rollout_ref.model.path="$MODEL" "$@"
exec atlas-rl check memory "artifacts/$RUN" --min-margin-gib "${MIN_MARGIN_GIB:-0}"
