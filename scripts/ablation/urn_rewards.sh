#!/usr/bin/env bash
# What the presets and potentials of the reward do: the demo's urn, 20 steps each, the three presets with no potential, then
# with a table that the first three runs give. Then the table of all six, and their replay, which must find every row equal.
# Needs what launchers/demo_cpu.sh needs; six runs of four minutes and a warm start.
# Usage: scripts/ablation/urn_rewards.sh [hydra overrides...]; SEED=N, NAME=urn-rewards (other overrides, other name).
# A run that has finished is not run again; what an interrupted one left is moved aside.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scripts/setup cpu
export PATH="$PWD/.venv/bin:$PATH"
NAME="${NAME:-urn-rewards}"
SEED="${SEED:-0}"
DATA="data/demo-seed$SEED"
PRESETS=(explore_0.01 dollar_0.1 both)
TABLE="artifacts/$NAME-seed$SEED.parquet"

run_one() { # NAME overrides...
    local run="$1"
    shift
    local finished="logs/$run.finished"
    if [[ -e $finished ]]; then
        echo "$run: finished before, $(cat "$finished")"
        return
    fi
    if [[ -e artifacts/$run ]]; then
        local aside
        aside="artifacts/$run.interrupted-$(date -u +%Y%m%d-%H%M%S)"
        echo "$run: was interrupted; moved to $aside"
        mv "artifacts/$run" "$aside"
    fi
    SECONDS=0
    python -m atlas_rl.cli.train experiment=urn_demo atlas.run.id="$run" atlas.run.seed="$SEED" \
        data.train_files="$DATA/train.parquet" data.val_files="$DATA/val.parquet" \
        actor_rollout_ref.model.path="$DATA/model" trainer.total_training_steps=20 trainer.test_freq=20 "$@"
    atlas-rl run summary "artifacts/$run" --label "$run" --val-file "$DATA/val.parquet" --seconds "$SECONDS"
    atlas-rl replay "artifacts/$run"
    echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) after $SECONDS s" > "$finished"
}

atlas-rl demo prepare --out "$DATA" --seed "$SEED"
runs=()
for preset in "${PRESETS[@]}"; do
    run="$NAME-$preset-zero-seed$SEED"
    runs+=("artifacts/$run")
    run_one "$run" atlas.reward.preset="$preset" "$@"
done
[[ -e $TABLE ]] || atlas-rl potential build "${runs[@]}" --out "$TABLE" \
    --cover "$DATA/train.parquet" --cover "$DATA/val.parquet"
for preset in "${PRESETS[@]}"; do
    run="$NAME-$preset-table-seed$SEED"
    runs+=("artifacts/$run")
    run_one "$run" atlas.reward.preset="$preset" 'atlas.reward.potentials={table: 1.0}' \
        atlas.potentials.table.path="$TABLE" "$@"
done
exec python scripts/ablation/urn_rewards.py --val-file "$DATA/val.parquet" "${runs[@]}"
