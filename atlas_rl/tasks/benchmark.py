"""A benchmark's tool surface, read from the YAML file that its rows name."""

from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from atlas_rl.errors import ConfigError
from atlas_rl.records.base import Record
from atlas_rl.tasks.notes import NoteName

BENCHMARKS = Path(__file__).parent / "benchmarks"
"""Folder of the surfaces that come with atlas_rl, NAME.yaml each."""


class Tool(Record):
    """One callable tool as the policy sees it."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments object."""

    @property
    def openai(self) -> dict[str, Any]:
        """The form that chat templates render."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Benchmark(Record):
    """The tools, texts and grader of one benchmark."""

    name: str
    system_prompt: str
    explore: Tool
    submit: Tool
    submission_field: str
    """Argument of submit that holds the answer."""
    observation: str
    """str.format template of an explore's observation; fields k, max_explores, answer, reasoning."""
    timed_out_observation: str
    """The same for a candidate that timed out."""
    submit_response: str = ""
    """Observation after a submit; empty: none is appended."""
    require_explore_first: bool = False
    max_text_tokens: int | None = None
    """Bound on the free text before a call, in sampled tokens; 0: no text, None: unbounded."""
    note: NoteName | None = None
    """Which text demonstrations write before each call, a key of ``tasks.notes.NOTES``; None: none."""
    grader: Literal["exact", "math"]


@cache
def load_benchmark(spec: str) -> Benchmark:
    """Read a surface by the name of a built-in one or by the path of a YAML file.

    Raises:
        ConfigError: no such surface, or its YAML does not describe one.
    """
    path = Path(spec) if spec.endswith((".yaml", ".yml")) else BENCHMARKS / f"{spec}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in BENCHMARKS.glob("*.yaml")))
        raise ConfigError(f"benchmark_spec {spec!r}: no file {path}; use a path that ends in .yaml, or one of: {known}")
    try:
        return Benchmark.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"benchmark file {path}: {' '.join(str(error).split())}") from error
