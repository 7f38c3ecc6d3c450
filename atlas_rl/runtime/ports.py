"""What an episode needs of a tokenizer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

Decode = Callable[[Sequence[int]], str]
"""Ids to text, for reading calls; nothing decoded is ever encoded again."""


class Template(Protocol):
    """Text that is not the policy's, as token ids."""

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """[P] the opening messages and the tools (``Tool.openai``), up to where the first generation starts."""
        ...

    def observation_ids(self, text: str) -> list[int]:
        """[N] from the end token that the policy sampled to where the next generation starts; ``text`` in between."""
        ...
