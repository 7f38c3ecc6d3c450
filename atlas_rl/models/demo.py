"""The demos: for each benchmark its questions and the warm start of the policy that RL begins with."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from atlas_rl.data.parquet import read_rows, write_rows
from atlas_rl.errors import ConfigError
from atlas_rl.models.demonstrations import StopConfig
from atlas_rl.models.tiny import TinyConfig, build_tiny_model
from atlas_rl.models.warm_start import WarmStartConfig, warm_start
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows

SPLITS = ("train", "val", "demonstrations")
"""The files of a demo, NAME.parquet each; their order decides their seeds."""

_TOKENIZER_ROWS = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Demo:
    """One demo."""

    urns: UrnConfig
    """Its questions; they name its benchmark."""
    num_rows: Mapping[str, int]
    """Questions of each split."""
    warm_start: WarmStartConfig
    """Its seed is replaced by the one that is asked for."""
    shape: TinyConfig = field(default_factory=TinyConfig)


DEMOS: Mapping[str, Demo] = {
    "urn": Demo(
        urns=UrnConfig(),
        num_rows={"train": 4096, "val": 512, "demonstrations": 4096},
        warm_start=WarmStartConfig(),
    ),
    # Six candidates, so that an episode with its notes is no longer than one of eight without. The demonstrator
    # explores them all as a rule: a note on six is learned last, and not within these steps where it is seen less.
    "urn_notes": Demo(
        urns=UrnConfig(benchmark="urn_notes", num_candidates=6),
        num_rows={"train": 4096, "val": 128, "demonstrations": 4096},
        warm_start=WarmStartConfig(
            stop=StopConfig(late=(6, 6), early=(1, 5), early_share=0.2), primer_steps=60, num_steps=380
        ),
    ),
}
"""By the name of their benchmark."""


def demo_named(name: str) -> Demo:
    """The demo of a benchmark.

    Raises:
        ConfigError: there is none.
    """
    if name not in DEMOS:
        raise ConfigError(f"demo {name!r} is not known; use one of: {', '.join(DEMOS)}")
    return DEMOS[name]


def prepare(out: Path, demo: Demo, seed: int, tell: Callable[[str], None]) -> None:
    """Write a demo's questions and its warm-started model.

    Args:
        out: Folder for NAME.parquet of each split and for ``model``, which appears last and whole.
        demo: Which.
        seed: Root of every draw.
        tell: Takes one line a file that is written.

    Raises:
        ConfigError: ``out`` holds a model already, or the demo does not fit together.
    """
    model_dir = out / "model"
    if model_dir.exists():
        raise ConfigError(f"{model_dir} is there already; remove it or choose another --out")
    for place, name in enumerate(SPLITS):
        # One seed a split, so that no two splits of any run seed share a draw.
        split_seed = len(SPLITS) * seed + place
        rows = make_rows(demo.urns, demo.num_rows[name], split_seed, f"urn-{name}-")
        write_rows(rows, demo.urns.benchmark, out / f"{name}.parquet")
        tell(f"{out / name}.parquet: {len(rows)} questions, seed {split_seed}")
    rows = read_rows(out / "demonstrations.parquet")
    benchmark = load_benchmark(demo.urns.benchmark)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        fresh, started = Path(scratch) / "fresh", Path(scratch) / "started"
        num_parameters = build_tiny_model(
            fresh, benchmark=benchmark, rows=rows[:_TOKENIZER_ROWS], seed=seed, config=demo.shape
        )
        report = warm_start(fresh, started, rows, benchmark, replace(demo.warm_start, seed=seed))
        started.rename(model_dir)
    notes = None if report.check is None else report.check.wrong_notes_per_episode
    tell(
        f"{model_dir}: {num_parameters} parameters, warm start {report.wall_seconds:.0f} s, "
        f"held-out loss {report.held_out_loss:.3f} nats, answers as demonstrated {report.answer_probability:.3f}"
        + ("" if notes is None else f", wrong notes an episode {notes:.3f}")
    )
