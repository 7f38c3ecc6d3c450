"""An FSDP2 model on two ranks resumes to the bit, and its parts make the whole tensors."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_states import same, save_step
from sharded_ranks import CRITIC

from atlas_rl.checkpoint.identity import ModelIdentity
from atlas_rl.checkpoint.loading import load_rank
from atlas_rl.checkpoint.manifest import encode_manifest, read_manifest
from atlas_rl.checkpoint.reading import StepFiles
from atlas_rl.checkpoint.tensors import spec_of
from atlas_rl.checkpoint.whole import whole_trainable
from atlas_rl.errors import ConfigError, TrainingError

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two ranks saved step 2 and trained step 3, and two fresh ones loaded it and did the same."""
    folder = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, str(Path(__file__).parent / "sharded_ranks.py"), str(folder)]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def digests(saved: Path, phase: str) -> list[dict[str, str]]:
    """[rank] digests by name of what each rank had at the end."""
    return [json.loads((saved / f"{phase}_{rank}.json").read_text()) for rank in range(2)]


def test_two_fresh_ranks_go_on_as_if_nothing_had_happened(saved: Path) -> None:
    uninterrupted = digests(saved, "save")
    assert digests(saved, "load") == uninterrupted
    assert uninterrupted[0] != uninterrupted[1]
    assert len(uninterrupted[0]) == 6 * 4 + 1


def test_every_shard_says_where_it_lies_in_the_whole(saved: Path) -> None:
    files = StepFiles(saved / "checkpoints" / "global_step_2")
    shards = [
        {
            name: (spec.shape, spec.offset, spec.whole_shape)
            for name, spec in files.trainable_specs("critic", rank).items()
        }
        for rank in range(2)
    ]
    assert shards[0] == {
        "down.weight": ((2, 6), (0, 0), (3, 6)), "down.bias": ((2,), (0,), (3,)),
        "up.weight": ((3, 3), (0, 0), (6, 3)), "up.bias": ((3,), (0,), (6,)),
        "score.weight": ((1, 6), (0, 0), (1, 6)), "score.bias": ((1,), (0,), (1,)),
    }  # fmt: skip
    assert shards[1] == {
        "down.weight": ((1, 6), (2, 0), (3, 6)), "down.bias": ((1,), (2,), (3,)),
        "up.weight": ((3, 3), (3, 0), (6, 3)), "up.bias": ((3,), (3,), (6,)),
        "score.weight": ((0, 6), (1, 0), (1, 6)), "score.bias": ((0,), (1,), (1,)),
    }  # fmt: skip


def test_the_parts_make_the_whole_tensors(saved: Path) -> None:
    whole = torch.load(saved / "whole.pt", weights_only=True)
    assert same(whole_trainable(saved / "checkpoints" / "global_step_2", "critic"), whole)


def test_another_number_of_ranks_is_refused(saved: Path) -> None:
    expect = ModelIdentity(world_size=1, base_fingerprint="f", lora=None)
    with pytest.raises(ConfigError, match=r"critic was saved with world size 2, this run has 1; resume it on 2 ranks"):
        load_rank(saved / "checkpoints" / "global_step_2", "critic", 0, expect=expect, trainable=None)


def test_a_module_that_is_not_sharded_is_refused(saved: Path) -> None:
    whole = torch.load(saved / "whole.pt", weights_only=True)
    wanted = {name: spec_of(name, tensor) for name, tensor in whole.items()}
    message = r"tensor 'down.weight' is F32\[2, 6\] at \[0, 0\] of \[3, 6\], the model's is F32\[3, 6\]; build the"
    with pytest.raises(ConfigError, match=message):
        load_rank(saved / "checkpoints" / "global_step_2", "critic", 0, expect=CRITIC, trainable=wanted)


def test_ranks_that_hold_the_same_part_must_agree(tmp_path: Path) -> None:
    step = save_step(tmp_path, 1)  # the two ranks of its actor hold whole tensors that differ
    with pytest.raises(TrainingError, match=r"actor 'layer.lora_A': ranks that hold the same part differ"):
        whole_trainable(step, "actor")


def test_a_part_that_no_rank_holds_is_an_error(saved: Path, tmp_path: Path) -> None:
    step = shutil.copytree(saved / "checkpoints" / "global_step_2", tmp_path / "global_step_2")
    manifest = read_manifest(step)
    fewer = ModelIdentity(world_size=1, base_fingerprint="f", lora=None)
    object.__setattr__(manifest.identity, "models", {"critic": fewer})
    (step / "manifest.json").write_bytes(encode_manifest(manifest))
    with pytest.raises(TrainingError, match=r"critic 'down.weight': ranks hold 12 of 18 values; a bug"):
        whole_trainable(step, "critic")
