"""What run.json promises about every episode of a run: limits, grammar, protocol tokens, reward."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atlas_rl.errors import RecordError
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.reporting.manifest import Manifest
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.potential_sources import potential_of
from atlas_rl.rewards.potentials import Potential


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What an episode of the run must keep."""

    run_id: str
    max_prompt_length: int
    """Most tokens of a prompt."""
    max_response_length: int
    """Most tokens of generations and observations together."""
    max_turns: int
    is_constrained: bool
    """Whether every generation was sampled under the grammar of its state."""
    grammar_hashes: Mapping[str, str]
    """sha256 of the structural tag by BENCHMARK/STATE."""
    call_begin_id: int
    call_end_id: int
    stop_ids: frozenset[int]
    control_ids: frozenset[int]
    """Every id that neither free text nor arguments may hold, the ones above included."""
    reward: RewardConfig
    potential: Potential
    num_val_episodes: int
    """Episodes of one validation: its rows times the sessions of each."""

    def grammar_names(self, benchmark: str, state: EpisodeState) -> frozenset[str | None]:
        """Hashes of which the record of a generation in ``state`` must name one; None alone: there is no grammar.

        Raises:
            RecordError: run.json has no grammar for it.
        """
        if not self.is_constrained:
            return frozenset({None})
        key = f"{benchmark}/{state}"
        if key not in self.grammar_hashes:
            raise RecordError(
                f"run.json of {self.run_id!r} has no grammar hash {key!r}, only {sorted(self.grammar_hashes)}; its "
                "records are of another run"
            )
        # A run that reserves room for its calls names the tighter texts of a state too, as STATE/text_N.
        return frozenset(
            digest for name, digest in self.grammar_hashes.items() if name == key or name.startswith(f"{key}/")
        )


def read_promises(manifest: Manifest) -> Promises:
    """Take the promises out of a manifest.

    Raises:
        RecordError: a key that they are made of is missing or of another type.
        ConfigError: the reward cannot be rebuilt from the configuration alone.
        DataError: the file of a potential is missing, or is not the one that the run was started with.
    """
    tokens = manifest.protocol_token_ids
    reward = RewardConfig.from_mapping(_value(manifest.config, "atlas.reward", dict))
    return Promises(
        run_id=manifest.run_id,
        max_prompt_length=_value(manifest.config, "data.max_prompt_length", int),
        max_response_length=_value(manifest.config, "data.max_response_length", int),
        max_turns=_value(manifest.config, "atlas.runtime.max_turns", int),
        is_constrained=_value(manifest.config, "atlas.runtime.grammar", bool),
        grammar_hashes=manifest.grammar_hashes,
        call_begin_id=_value(tokens, "call_begin", int),
        call_end_id=_value(tokens, "call_end", int),
        stop_ids=frozenset(_value(tokens, "stop", list)),
        control_ids=frozenset(_value(tokens, "control", list)),
        reward=reward,
        potential=potential_of(_value(manifest.config, "atlas", dict), manifest.working_directory),
        num_val_episodes=_num_val_episodes(manifest),
    )


def _num_val_episodes(manifest: Manifest) -> int:
    config = manifest.config
    files = _value(config, "data.val_files", (str, list))
    paths = [files] if isinstance(files, str) else files
    unknown = [path for path in paths if path not in manifest.data_files]
    if unknown:
        raise RecordError(f"run.json: data.val_files={unknown} are not in its data_files; it was written otherwise")
    num_rows = sum(manifest.data_files[path].num_rows for path in paths)
    most = _value(config, "data.val_max_samples", int)
    used = min(num_rows, most) if most > 0 else num_rows
    sessions: int = _value(config, "actor_rollout_ref.rollout.val_kwargs.n", int)
    return used * sessions


def _value(node: Mapping[str, Any], dotted: str, kind: type | tuple[type, ...]) -> Any:
    value: Any = node
    for name in dotted.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise RecordError(f"run.json: {dotted} is not there; the run was started by another version")
        value = value[name]
    is_other_number = isinstance(value, bool) and kind is int
    if not isinstance(value, kind) or is_other_number:
        raise RecordError(f"run.json: {dotted}={value!r} is no value that a run can have; restore the file")
    return value
