"""``atlas-rl grammar check``: a benchmark's grammars on a tokenizer, and the cases that must hold on it."""

from pathlib import Path
from typing import Annotated

import typer

CASES = Path(__file__).resolve().parents[2] / "grammar" / "cases.yaml"

grammar_app = typer.Typer(no_args_is_help=True, help="Look at grammars without a run.")


@grammar_app.callback()
def grammar() -> None:
    """Look at grammars without a run."""  # a group of one command keeps that command's name only with a callback


@grammar_app.command("check")
def check(
    model: Annotated[Path, typer.Option(help="Model folder, or one with tokenizer.json and tokenizer_config.json.")],
    benchmark: Annotated[str, typer.Option(help="Name of a built-in benchmark, or the path of a YAML file.")],
    cases: Annotated[Path, typer.Option(help="File of cases.")] = CASES,
    max_text_tokens: Annotated[int | None, typer.Option(help="Bound in place of the benchmark's own.")] = None,
    write: Annotated[Path | None, typer.Option(help="Folder for the tags, by benchmark and tokenizer.")] = None,
) -> None:
    """Print the compiled states and run the token-level and parser cases; a case that fails exits with 1."""
    from atlas_rl.cli.grammar_report import GrammarReport, write_tags
    from atlas_rl.grammar.cases import load_cases
    from atlas_rl.tasks.benchmark import load_benchmark

    checked = GrammarReport(model, load_benchmark(benchmark), max_text_tokens=max_text_tokens)
    for line in checked.states():
        typer.echo(line)
    if write is not None:
        typer.echo(f"tags in {write_tags(write, checked)}")
    outcomes = list(checked.outcomes(load_cases(cases)))
    for where, fault in outcomes:
        if fault:
            typer.echo(f"FAILED {where}: {fault}")
    passed = sum(not fault for _, fault in outcomes)
    typer.echo(f"grammar: cases={len(outcomes)} passed={passed} states={len(checked.grammar)}")
    if passed < len(outcomes):
        raise typer.Exit(1)
