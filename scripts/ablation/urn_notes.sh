#!/usr/bin/env bash
# Does a free text that no reward looks at stay right? Seeds of urn_notes for each mode of log-probabilities, one run after
# the other, then the table. Needs what launchers/demo_cpu.sh needs; nine runs of three to five minutes and three warm starts.
# Usage: scripts/ablation/urn_notes.sh [hydra overrides...]; SEEDS="0 1 2", NAME=urn-notes (other overrides, other name).
# A run that has finished is not run again; what an interrupted one left is moved aside.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
scripts/setup cpu
export PATH="$PWD/.venv/bin:$PATH"
NAME="${NAME:-urn-notes}"
read -r -a SEEDS <<< "${SEEDS:-0 1 2}"
MODES=(full_vocab full_vocab_unforced grammar)
declare -A OVERRIDES=(
    [full_vocab]="atlas.policy.logprobs=full_vocab"
    [full_vocab_unforced]="atlas.policy.logprobs=full_vocab atlas.policy.train_forced_tokens=false"
    [grammar]="atlas.policy.logprobs=grammar"
)

runs=()
for seed in "${SEEDS[@]}"; do
    data="data/urn-notes-seed$seed"
    atlas-rl demo prepare --benchmark urn_notes --out "$data" --seed "$seed"
    for mode in "${MODES[@]}"; do
        run="$NAME-$mode-seed$seed"
        runs+=("artifacts/$run")
        finished="logs/$run.finished"
        if [[ -e $finished ]]; then
            echo "$run: finished before, $(cat "$finished")"
            continue
        fi
        if [[ -e artifacts/$run ]]; then
            aside="artifacts/$run.interrupted-$(date -u +%Y%m%d-%H%M%S)"
            echo "$run: was interrupted; moved to $aside"
            mv "artifacts/$run" "$aside"
        fi
        read -r -a overrides <<< "${OVERRIDES[$mode]}"
        SECONDS=0
        python -m atlas_rl.cli.train experiment=urn_notes atlas.run.id="$run" atlas.run.seed="$seed" \
            data.train_files="$data/train.parquet" data.val_files="$data/val.parquet" \
            actor_rollout_ref.model.path="$data/model" "${overrides[@]}" "$@"
        atlas-rl run summary "artifacts/$run" --label "$run" --val-file "$data/val.parquet" --seconds "$SECONDS"
        echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) after $SECONDS s" > "$finished"
    done
done
exec python scripts/ablation/urn_notes.py --out "artifacts/$NAME-table" "${runs[@]}"
