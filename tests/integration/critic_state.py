"""A real critic engine in a fresh process: updated and saved, or loaded; prints its values and head digests as JSON.

Usage: critic_state.py save|load MODEL STEPS_FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["VERL_USE_EXTERNAL_MODULES"] = "atlas_rl.training.plugin"
os.environ["VERL_PLATFORM"] = "cpu"
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from verl.utils import tensordict_utils as tu

from atlas_rl.checkpoint.committer import StepCommitter
from atlas_rl.checkpoint.identity import LoraIdentity, ModelIdentity, RunIdentity
from atlas_rl.checkpoint.layout import step_name
from atlas_rl.checkpoint.state import RunState
from atlas_rl.cli.composition import compose
from atlas_rl.training.standalone import ActorRow, actor_batch, build_critic, only_rank

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
IDENTITY = ModelIdentity(
    world_size=1, base_fingerprint="tiny", lora=LoraIdentity(rank=8, alpha=16, target_modules=TARGETS)
)
NUM_UPDATES = 3


def batch(*, update: bool = False) -> Any:
    """Two rows, the same in every process."""
    rows = [
        ActorRow(
            uid=f"row{place}", session_id=0, prompt_ids=range(20, 30), response_ids=range(40, 52 + place),
            response_mask=[1] * (12 + place), benchmark_spec="urn", generations=[(0, 12 + place, None)],
        )
        for place in range(2)
    ]  # fmt: skip
    lengths = [len(row.response_ids) for row in rows]
    made = actor_batch(
        rows,
        {"values": [torch.zeros(n) for n in lengths], "returns": [torch.linspace(-1, 1, n) for n in lengths]},
    )
    tu.assign_non_tensor(made, temperature=1.0, compute_loss=update)
    if update:
        tu.assign_non_tensor(
            made, global_batch_size=2, mini_batch_size=2, epochs=1, seed=0, dataloader_kwargs={"shuffle": False}
        )
    return made


def head(worker: Any) -> dict[str, str]:
    """Digests of the value head's tensors."""
    return {name: digest for name, digest in worker.trainable_digests().items() if ".score." in f".{name}"}


def values(worker: Any) -> list[str]:
    """Every value of the fixed batch, with all of its bits."""
    found = worker.infer_batch(batch())["values"]
    return [float(value).hex() for row in found.unbind() for value in row]


def main() -> None:
    """Save after some updates, or load, and print what the critic says."""
    what, model, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    [config] = compose(
        [
            "experiment=urn_demo", f"actor_rollout_ref.model.path={model}", "data.train_files=none",
            "data.val_files=none", "atlas.run.id=critic", "critic.optim.total_training_steps=100",
        ]
    )  # fmt: skip
    with only_rank():
        worker = build_critic(config)
        heads = [head(worker)]
        if what == "save":
            for _ in range(NUM_UPDATES):
                worker.train_mini_batch(batch(update=True))
                heads.append(head(worker))
            identity = RunIdentity(run_id="critic", models={"critic": IDENTITY})
            with StepCommitter(folder, identity=identity, code_version="test", anchor_every=None) as committer:
                partial = committer.begin(NUM_UPDATES)
                said = values(worker)
                worker.save_step(str(partial))
                state = RunState(
                    global_step=NUM_UPDATES, epoch=0, actor_updates=0, critic_updates=NUM_UPDATES, kl_coefficient=None,
                    dataloader=None, rng=None,
                )  # fmt: skip
                committer.commit(partial, state)
                worker.finish_saving()
                committer.wait()
        else:
            worker.load_step(str(folder / step_name(NUM_UPDATES)), IDENTITY)
            heads.append(head(worker))
            said = values(worker)
    print("CRITIC " + json.dumps({"heads": heads, "values": said}))


if __name__ == "__main__":
    main()
