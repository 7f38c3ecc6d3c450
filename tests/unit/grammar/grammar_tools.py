"""Tools and benchmarks of the grammar tests."""

from typing import Any

from atlas_rl.tasks.benchmark import Benchmark, Tool


def tool(name: str, **properties: Any) -> Tool:
    """A tool whose arguments are all required."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return Tool(name=name, description=f"{name}.", parameters=schema)


EXPLORE = tool("explore")
LETTER = tool("submit", answer={"type": "string", "enum": ["A", "B", "C", "D"]})
NUMBER = tool("submit", answer={"type": "string", "pattern": r"^-?[0-9][0-9,]{0,14}(\.[0-9]{1,6})?$"})
CODE = tool("submit", answer={"type": "string", "maxLength": 4096})
SHORT = tool("submit", answer={"type": "string", "minLength": 1, "maxLength": 12})
MIXED = tool(
    "submit",
    answer={"enum": ["é", 'quo"te', 7, True, None]},
    candidate={"type": "integer", "minimum": -2, "maximum": 11},
    sure={"type": "boolean"},
    kind={"const": "final"},
)


def benchmark(
    submit: Tool = LETTER, *, explore: Tool = EXPLORE, text: int | None = 0, first: bool = False
) -> Benchmark:
    """A benchmark with this submit."""
    return Benchmark(
        name="toy",
        system_prompt="Find it.",
        explore=explore,
        submit=submit,
        submission_field="answer",
        observation="{answer}",
        timed_out_observation="-",
        require_explore_first=first,
        max_text_tokens=text,
        grader="exact",
    )
