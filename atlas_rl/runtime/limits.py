"""How long an episode may get."""

from dataclasses import dataclass

from atlas_rl.errors import ConfigError
from atlas_rl.records.breakdown import MAX_EXPLORES


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Token budgets and turns of one episode; every field is at least 1."""

    max_prompt_length: int = 8192
    """Most tokens of the first prompt; a longer one is refused, never truncated."""
    max_response_length: int = 16384
    """Most tokens that generations and observations (template glue included) have together."""
    max_turns: int = MAX_EXPLORES + 1
    """Most generations; the default has room for every explore and a submit, so that it never binds."""

    def __post_init__(self) -> None:
        """Refuse limits that no episode can keep.

        Raises:
            ConfigError: a limit is no integer or below 1.
        """
        for name in ("max_prompt_length", "max_response_length", "max_turns"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"limits.{name} must be an integer of at least 1, got {value!r}")
