"""Which episode of which run an episode is."""

from dataclasses import dataclass

from atlas_rl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The names that tell an episode from all others; docs of the fields are in records/episode.py."""

    run_id: str
    uid: str
    session_id: int
    attempt_id: int
    global_steps: int
    """Training step that asked for the episode; part of the seed of its generations."""
    run_seed: int | None
    """Root of the seeds of all generations; None: the engine draws with its own generator."""

    def __post_init__(self) -> None:
        """Refuse an identity that no record can hold.

        Raises:
            ConfigError: a name is no text, or a number is no integer or below 0.
        """
        for name in ("run_id", "uid"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"identity.{name} must be a text that is not empty, got {value!r}")
        for name in ("session_id", "attempt_id", "global_steps"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ConfigError(f"identity.{name} must be an integer of at least 0, got {value!r}")
        if self.run_seed is not None and type(self.run_seed) is not int:
            raise ConfigError(f"identity.run_seed must be an integer or None, got {self.run_seed!r}")

    @property
    def request_id(self) -> str:
        """UID_SESSION_aATTEMPT: the same for all turns, so that engines route them to one replica."""
        return f"{self.uid}_{self.session_id}_a{self.attempt_id}"
