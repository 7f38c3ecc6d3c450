"""The ids at which an engine stops, beside the tokenizer's end token."""

import json
from pathlib import Path

from atlas_rl.errors import ConfigError


def engine_stop_ids(folder: Path) -> tuple[int, ...]:
    """``eos_token_id`` of a model's generation_config.json: vLLM stops at each, beside the tokenizer's end token.

    Raises:
        ConfigError: the file is no JSON object, or the key holds something else than ids.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return ()
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path}: no JSON: {error}; save the model again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must hold a JSON object, got {type(content).__name__}; save the model again")
    stops = content.get("eos_token_id")
    listed = stops if isinstance(stops, list) else [] if stops is None else [stops]
    if any(type(stop) is not int for stop in listed):
        raise ConfigError(f"{path}: eos_token_id is {stops!r}; write token ids")
    return tuple(listed)
