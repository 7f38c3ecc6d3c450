"""A structural tag is validated once a process, not once a request.

vLLM's front end parses the tag of every request into a grammar and throws it away: 0.1 to 2 ms of its event loop, for
a handful of tags that never change. Installed by the entry point group ``vllm.general_plugins``, which vLLM loads in
every process of its own.
"""

from typing import Any

_MAX_TAGS = 1024
_valid: set[str] = set()


def remember_valid_tags() -> None:
    """Wrap vLLM's validation; calling it again changes nothing."""
    from vllm.v1.structured_output import backend_xgrammar

    original = backend_xgrammar.validate_xgrammar_grammar
    if getattr(original, "is_remembering", False):
        return

    def validate_xgrammar_grammar(sampling_params: Any) -> None:
        params = sampling_params.structured_outputs
        tag = None if params is None else params.structural_tag
        if tag in _valid:
            return
        original(sampling_params)
        if tag is not None and len(_valid) < _MAX_TAGS:
            _valid.add(tag)

    validate_xgrammar_grammar.is_remembering = True  # type: ignore[attr-defined]
    backend_xgrammar.validate_xgrammar_grammar = validate_xgrammar_grammar
