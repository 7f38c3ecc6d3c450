"""For how long a save keeps training waiting, and how much it writes, beside verl's full save of the same state.

    python scripts/bench/checkpoint_blocked.py --hardware gpu --work /tmp/saves --out blocked.json

Builds one LoRA actor with random weights, updates it once so that the optimizer has a state, saves it three times our
way and once verl's way, and prints one line each. Needs neither Ray nor data.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_model import qwen3_tokenizer, set_cpu_environment, write_model

NUM_SAVES = 3


def main() -> None:
    """Build, update, save both ways, print and write."""
    arguments = _arguments()
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "atlas_rl.training.plugin"
    if arguments.hardware == "cpu":
        set_cpu_environment()
    from random_model import drawn_weights

    from atlas_rl.cli.composition import compose
    from atlas_rl.training.standalone import standalone_actor

    is_card = arguments.hardware == "gpu"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_model(
            folder, qwen3_tokenizer(None), num_layers=arguments.layers, hidden_size=arguments.hidden, max_positions=4096
        )
        [config] = compose(
            [
                "experiment=gsm8k_smoke" if is_card else "experiment=urn_demo", f"hardware={arguments.hardware}",
                f"actor_rollout_ref.model.path={folder}", "data.train_files=none", "data.val_files=none",
                "atlas.run.id=bench", f"actor_rollout_ref.model.lora_rank={arguments.rank}",
                "actor_rollout_ref.model.lora_alpha=128", "actor_rollout_ref.actor.optim.total_training_steps=1000",
                "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096", *arguments.override,
            ]
        )  # fmt: skip
        with drawn_weights("cuda" if is_card else "cpu"), standalone_actor(config) as actor:
            results = _measure(actor, arguments)
    ours, verls = results["ours"], results["verl"]
    for name, result in results.items():
        print(
            f"{name:<6} blocked {result['blocked_seconds']:.3f} s, whole {result['seconds']:.2f} s, {result['bytes']} B"
        )
    print(
        f"checkpoint: blocked_share={ours['blocked_seconds'] / verls['blocked_seconds']:.5f} "
        f"bytes_share={ours['bytes'] / verls['bytes']:.5f} "
        f"bytes_over_tensors={ours['bytes'] / ours['tensor_bytes']:.5f} "
        f"first_blocked={ours['first_blocked_seconds']:.3f}"
    )
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")


def _measure(actor: Any, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    from atlas_rl.checkpoint.committer import StepCommitter
    from atlas_rl.checkpoint.identity import ModelIdentity, RunIdentity
    from atlas_rl.checkpoint.rng import capture_rng
    from atlas_rl.checkpoint.state import RunState

    engine = actor.actor.engine
    engine.prepare_to_save()
    _update(actor)
    tensor_bytes = _tensor_bytes(engine)
    identity = RunIdentity(
        run_id="bench", models={"actor": ModelIdentity(world_size=1, base_fingerprint="bench", lora=None)}
    )
    blocked, whole = [], []
    folder = arguments.work / "ours"
    with StepCommitter(folder, identity=identity, code_version="bench", anchor_every=None) as committer:
        for step in range(1, NUM_SAVES + 1):
            _synchronize()
            begun = time.perf_counter()
            partial = committer.begin(step)
            cost = engine.save_step(partial)
            committer.commit(
                partial,
                RunState(
                    global_step=step, epoch=0, actor_updates=1, critic_updates=0, kl_coefficient=None, dataloader=None,
                    rng=capture_rng(),
                ),
            )  # fmt: skip
            blocked.append(time.perf_counter() - begun)
            engine.finish_saving()
            saved = committer.wait()
            whole.append(time.perf_counter() - begun)
        assert saved is not None
        num_bytes = _folder_bytes(saved)
        assert cost.num_bytes <= num_bytes
    shutil.rmtree(folder)
    _synchronize()
    begun = time.perf_counter()
    engine.save_checkpoint(
        local_path=str(arguments.work / "verl"), hdfs_path=None, global_step=1, max_ckpt_to_keep=None
    )
    seconds = time.perf_counter() - begun
    verl_bytes = _folder_bytes(arguments.work / "verl")
    shutil.rmtree(arguments.work / "verl")
    return {
        "ours": {
            "blocked_seconds": max(blocked[1:]), "first_blocked_seconds": blocked[0], "seconds": max(whole[1:]),
            "bytes": num_bytes, "tensor_bytes": tensor_bytes,
        },
        "verl": {"blocked_seconds": seconds, "seconds": seconds, "bytes": verl_bytes},
    }  # fmt: skip


def _update(actor: Any) -> None:
    """One update on made-up rows: Adam has no state before it."""
    import torch
    from verl.utils import tensordict_utils as tu

    from atlas_rl.training.chosen_tokens import POLICY_KEY
    from atlas_rl.training.standalone import ActorRow, actor_batch

    row = ActorRow(
        uid="bench", session_id=0, prompt_ids=range(10, 138), response_ids=range(200, 456), response_mask=[1] * 256,
        benchmark_spec="gsm8k", generations=[(0, 256, None)],
    )  # fmt: skip
    batch = actor_batch([row], {"old_log_probs": [torch.zeros(256)], "advantages": [torch.linspace(-1, 1, 256)]})
    tu.assign_non_tensor(
        batch, temperature=1.0, calculate_entropy=False, compute_loss=True, global_batch_size=1, mini_batch_size=1,
        epochs=1, seed=0, dataloader_kwargs={"shuffle": False},
        **{POLICY_KEY: {"logprobs": "full_vocab", "chunk_tokens": 1024}},
    )  # fmt: skip
    actor.update_actor(batch)


def _tensor_bytes(engine: Any) -> int:
    import torch

    tensors = [parameter for parameter in engine.module.parameters() if parameter.requires_grad]
    for state in engine.optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--hardware", choices=("cpu", "gpu"), default="gpu")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--work", type=Path, required=True, help="folder on the disk to be written to")
    parser.add_argument("--override", nargs="*", default=[], help="further configuration, key=value")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
