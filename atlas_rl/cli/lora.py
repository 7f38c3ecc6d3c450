"""``atlas-rl lora``: adapters to start from, out of a saved step, and into a model."""

from pathlib import Path
from typing import Annotated

import typer

lora_app = typer.Typer(no_args_is_help=True, help="Start, export and merge adapters.")

Base = Annotated[Path, typer.Option(help="Local Hugging Face folder of the base model.")]
Out = Annotated[Path, typer.Option(help="New folder to write.")]


def _fingerprint(base: Path) -> str:
    from atlas_rl.cli.model_folder import read_model_folder

    return read_model_folder("--base", str(base)).fingerprint


@lora_app.command("init")
def lora_init(
    base: Base,
    out: Out,
    targets: Annotated[str, typer.Option(help="Names of linear layers, comma-separated.")],
    rank: Annotated[int, typer.Option(help="Rows of A and columns of B.")] = 64,
    alpha: Annotated[int, typer.Option(help="A weight changes by alpha / rank * B @ A.")] = 128,
    seed: Annotated[int, typer.Option(help="Of every A and of the value head.")] = 0,
    value_head_std: Annotated[float, typer.Option(help="Spread of the value head; 0 starts every value at 0.")] = 0.0,
) -> None:
    """Write the adapters that training starts from, OUT/actor and OUT/critic, and OUT/init_report.json."""
    from atlas_rl.adapters.init import init_adapters

    names = [name.strip() for name in targets.split(",")]
    facts = init_adapters(base, out, rank, alpha, names, seed, value_head_std, base_fingerprint=_fingerprint(base))
    for kind, fact in facts.items():
        typer.echo(f"{out / kind}: {fact.line()}")


@lora_app.command("export")
def lora_export(
    step: Annotated[Path, typer.Argument(help="CHECKPOINTS/global_step_N of a run.")],
    base: Base,
    out: Out,
    model: Annotated[str | None, typer.Option(help="actor or critic; both if not given.")] = None,
) -> None:
    """Write the adapters of a saved step, OUT/actor and OUT/critic, as PEFT reads them."""
    from atlas_rl.adapters.export import export_adapter
    from atlas_rl.adapters.out_folder import new_folder
    from atlas_rl.adapters.saved_step import read_saved_model
    from atlas_rl.adapters.settings import AdapterKind
    from atlas_rl.errors import ConfigError

    kinds = [kind for kind in AdapterKind if model in (None, kind)]
    if not kinds:
        raise ConfigError(f"--model must be one of {', '.join(AdapterKind)}, got {model!r}")
    base_fingerprint = _fingerprint(base)
    with new_folder(out) as folder:
        facts = {
            kind: export_adapter(
                read_saved_model(step, kind), folder / kind, base_dir=base, base_fingerprint=base_fingerprint
            )
            for kind in kinds
        }
    for kind, fact in facts.items():
        typer.echo(f"{out / kind}: {fact.line()}")


@lora_app.command("merge")
def lora_merge(
    base: Base,
    adapter: Annotated[Path, typer.Option(help="Folder of an actor's adapter.")],
    out: Out,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; each tensor keeps its own if not given.")
    ] = None,
) -> None:
    """Write the base with an actor's adapter added, as a model folder."""
    from atlas_rl.adapters.merge import MERGED_DTYPES, merge_adapter
    from atlas_rl.errors import ConfigError

    if dtype is not None and dtype not in MERGED_DTYPES:
        raise ConfigError(f"--dtype must be one of {', '.join(MERGED_DTYPES)}, got {dtype!r}")
    facts = merge_adapter(
        base, adapter, out, MERGED_DTYPES[dtype] if dtype else None, base_fingerprint=_fingerprint(base)
    )
    typer.echo(f"{out}: {facts.num_merged} weights changed, {facts.num_copied} tensors as they were")
    if not facts.base_stated:
        typer.echo(f"{adapter} does not say which base it was made for; its layers and shapes fit this one")
    if facts.left_out:
        typer.echo(f"not in {out}: {', '.join(facts.left_out)}")
    for name, digest in facts.files.items():
        typer.echo(f"{name}: sha256 {digest}")
