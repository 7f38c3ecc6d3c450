"""Each stage is in memory_check.json when it ends; a rank that runs out is named with the key to lower."""

import time
from pathlib import Path
from typing import Any

import pytest
from memory_records import MODELS, head, rank
from omegaconf import OmegaConf
from ray.exceptions import RayActorError

from atlas_rl.reporting.memory import RankMemory, Stage, figures_line, read_memory_report
from atlas_rl.training import memory_stages
from atlas_rl.training.memory_stages import StageRecorder

CONFIG = OmegaConf.create(
    {
        "data": {"train_batch_size": 8, "max_prompt_length": 512, "max_response_length": 1024},
        "atlas": {"policy": {"head_chunk_tokens": 1024}},
        "critic": {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 1600, "forward_max_token_len_per_gpu": 4096},
        "actor_rollout_ref": {
            "actor": {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 4},
            "rollout": {"gpu_memory_utilization": 0.5},
        },
    }
)


class Workers:
    """A worker group whose ranks answer what they were told to, or are gone."""

    def __init__(self, *answers: RankMemory | Exception) -> None:
        self.answers = list(answers)
        self.num_started = 0

    def start_memory_stage(self) -> None:
        self.num_started += 1

    def end_memory_stage(self) -> list[Any]:
        return self.answers


class Lines:
    """A console that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


class NoRay:
    """Answers are there at once."""

    @staticmethod
    def wait(asked: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return asked, []

    @staticmethod
    def get(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_stages, "ray", NoRay)


def recorder(folder: Path, *answers: RankMemory | Exception) -> tuple[StageRecorder, Workers, Lines]:
    console, workers = Lines(), Workers(*answers)
    one = StageRecorder(folder, CONFIG, console, head("values/1", world_size=len(answers)))
    one.begin(workers, MODELS)
    return one, workers, console


def failed(folder: Path, stage: Stage, error: Exception, *answers: RankMemory | Exception) -> str:
    one, _, _ = recorder(folder, *answers)
    with pytest.raises(type(error)), one.measured(stage, 1):
        raise error
    explained = one.explained(error)
    assert explained is not None
    assert "\n" not in str(explained)
    return str(explained)


def test_a_stage_is_written_as_soon_as_it_ends(tmp_path: Path) -> None:
    one, workers, console = recorder(tmp_path, rank(1), rank(0, free=5))
    with one.measured(Stage.VALUES, 1):
        assert not (tmp_path / "memory_check.json").exists()
    report = read_memory_report(tmp_path)
    assert [stage.name for stage in report.stages] == ["values/1"]
    assert [found.rank for found in report.stages[0].ranks] == [0, 1]
    assert workers.num_started == 1
    assert console.lines == [
        f"values/1: {report.stages[0].seconds:.1f} s, rank 0 peak 100.00 GiB, margin -5.00 of 140.00 GiB"
    ]


def test_a_stage_within_a_stage_is_part_of_it(tmp_path: Path) -> None:
    one, workers, _ = recorder(tmp_path, rank())
    with one.measured(Stage.REAL_STEP, 3), one.measured(Stage.WEIGHTS, 3):
        pass
    assert [stage.name for stage in one.stages] == ["real_step/3"]
    assert workers.num_started == 1


def test_a_stage_that_began_before_there_were_ranks_has_the_peaks_of_their_whole_life(tmp_path: Path) -> None:
    one, workers, _ = recorder(tmp_path, rank())
    with one.measured(Stage.MODELS, None, since=time.perf_counter() - 7):
        pass
    assert workers.num_started == 0
    assert 7 < one.stages[0].seconds < 60


def test_a_rank_that_ran_out_is_named_with_peak_and_key(tmp_path: Path) -> None:
    out = rank(1, free=1, peak=139, out_of_memory="CUDA out of memory. Tried to allocate 3 GiB")
    said = failed(tmp_path, Stage.VALUES, RuntimeError("task failed\nCUDA out of memory"), rank(0), out)
    assert said == (
        "memory check: stage values/1, rank 1 (NVIDIA H200 of here) ran out of memory at a peak of 139.00 of 140.00 "
        "GiB; lower critic.forward_max_token_len_per_gpu=4096; memory_check.json in "
        f"{tmp_path} has the stages up to it"
    )
    assert read_memory_report(tmp_path).missing == ("values/1",)


@pytest.mark.parametrize(
    ("stage", "remedy"),
    [
        (Stage.UPDATE_ACTOR, "lower actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4;"),
        (
            Stage.UPDATE_CRITIC,
            "critic.ppo_max_token_len_per_gpu=1600 holds one row of 1536 tokens already: lower "
            "data.max_response_length=1024 or atlas.policy.head_chunk_tokens=1024, or set param_offload=true",
        ),
        (Stage.REAL_STEP, "lower actor_rollout_ref.rollout.gpu_memory_utilization=0.5;"),
        (Stage.ADVANTAGE, "lower data.train_batch_size=8;"),
    ],
)
def test_every_stage_has_its_key(tmp_path: Path, stage: Stage, remedy: str) -> None:
    assert remedy in failed(tmp_path, stage, RuntimeError("x"), rank(out_of_memory="CUDA out of memory"))


def test_an_engine_that_ran_out_in_a_process_of_its_own_is_named(tmp_path: Path) -> None:
    said = failed(tmp_path, Stage.LONG_CONTEXTS, RuntimeError("EngineCore:\nCUDA out of memory"), rank())
    assert said.startswith("memory check: stage long_contexts: the rollout engine or its server ran out of memory; ")


def test_a_process_that_the_kernel_killed_points_to_host_memory(tmp_path: Path) -> None:
    one, workers, _ = recorder(tmp_path, rank())
    with one.measured(Stage.VALUES, 1):
        pass
    error = RayActorError()
    workers.answers = [error]
    with pytest.raises(RayActorError), one.measured(Stage.UPDATE_ACTOR, 1):
        raise error
    said = str(one.explained(error))
    assert "stage update_actor: a worker process died, as the kernel kills one for lack of host memory" in said
    assert "(70.00 GiB were left at the least before)" in said
    assert read_memory_report(tmp_path).stages[-1].ranks == ()


def test_models_that_do_not_fit_are_named_before_anything_was_measured(tmp_path: Path) -> None:
    one = StageRecorder(tmp_path, CONFIG, Lines(), head("models"))
    explained = one.explained(RuntimeError("torch.OutOfMemoryError: CUDA out of memory"))
    one.write(str(explained))
    assert "stage models: a worker ran out of memory" in str(explained)
    assert read_memory_report(tmp_path).missing == ("models",)


def test_another_failure_is_not_explained_away(tmp_path: Path) -> None:
    one, _, _ = recorder(tmp_path, rank())
    with pytest.raises(ValueError, match="shapes"), one.measured(Stage.VALUES, 1):
        raise ValueError("shapes")
    assert one.explained(ValueError("shapes")) is None


def test_the_last_line_has_the_figures(tmp_path: Path) -> None:
    one, _, _ = recorder(tmp_path, rank())
    with one.measured(Stage.VALUES, 1):
        pass
    assert figures_line(read_memory_report(tmp_path)) == (
        "memory_check: steps=1 rows=32 longest_row=0 peak_gib=100.00 margin_gib=30.00 seconds=0.0"
    )
