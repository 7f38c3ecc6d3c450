"""What a run needs to start, built small: a configuration, datasets, model folders, tokenizers."""

import atexit
import copy
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from atlas_rl.cli.composition import CONFIGS, complete
from atlas_rl.cli.known_keys import verl_folder
from atlas_rl.cli.preflight import preflight
from atlas_rl.data.parquet import SCHEMA, write_rows
from atlas_rl.errors import AtlasError
from atlas_rl.models.chat import chat_template
from atlas_rl.tasks.urn import UrnConfig, make_rows
from atlas_rl.training.config import atlas_config

GIVEN = {
    "atlas.run.id": "test",
    "data.train_files": "train.parquet",
    "data.val_files": "val.parquet",
    "data.train_batch_size": 4,
    "data.max_prompt_length": 1000,
    "data.max_response_length": 500,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
    "critic.ppo_mini_batch_size": 4,
    "actor_rollout_ref.model.path": "model",
}


@cache
def _composed() -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        search = f"hydra.searchpath=[file://{verl_folder() / 'trainer' / 'config'}]"
        return hydra_compose("train", overrides=[search, "experiment=urn_demo"])


@cache
def _resolved() -> DictConfig:
    return complete(unresolved())


def unresolved(**changes: Any) -> DictConfig:
    """The demo's configuration as composed, with dotted keys changed."""
    return _changed(copy.deepcopy(_composed()), {**GIVEN, **changes})


def config(**changes: Any) -> DictConfig:
    """The same, resolved before the changes; keyword names may hold dots."""
    return _changed(copy.deepcopy(_resolved()), changes)


def _changed(one: DictConfig, changes: dict[str, Any]) -> DictConfig:
    for key, value in changes.items():
        OmegaConf.update(one, key, value, merge=False, force_add=True)
    return one


def dataset(path: Path, num_rows: int = 4) -> str:
    """A parquet file of urn questions."""
    write_rows(make_rows(UrnConfig(), num_rows, seed=0, id_prefix="q"), "urn", path)
    return str(path)


def changed_dataset(path: Path, change: Callable[[dict[str, Any]], None], schema: pa.Schema | None = SCHEMA) -> str:
    """The same with its row 2 changed."""
    dataset(path)
    rows = pq.read_table(path).to_pylist()
    change(rows[2])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return str(path)


def model_folder(path: Path, **changes: Any) -> str:
    """A folder that looks like a model to everything that does not load its weights."""
    path.mkdir(parents=True, exist_ok=True)
    text = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512}
    (path / "config.json").write_text(json.dumps({**text, "max_position_embeddings": 2048, **changes}))
    (path / "tokenizer.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    return str(path)


def save_tokenizer(path: Path, *, without: str = "", template: str | None = None) -> None:
    """A byte-level BPE with the control tokens of the demo, less one of them, into a model folder."""
    shutil.copytree(_saved_tokenizer(without, template), path, dirs_exist_ok=True)


@cache
def _saved_tokenizer(without: str, template: str | None) -> Path:
    """A folder with the tokenizer alone, made once a process."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet)
    backend.train_from_iterator(['\n{"name": "submit", "arguments": {"answer": "A"}}\n'], trainer)
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tools = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
    kept = [AddedToken(token, normalized=False) for token in tools if token != without]
    backend.add_tokens(kept)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = chat_template(compact=True) if template is None else template
    folder = Path(tempfile.mkdtemp(prefix="atlas-tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer.save_pretrained(str(folder))
    return folder


def run_files(folder: Path) -> dict[str, Any]:
    """Model, tokenizer and data of a run that may start, by their keys."""
    model = model_folder(folder / "model")
    save_tokenizer(folder / "model")
    return {
        "data.train_files": dataset(folder / "train.parquet", 5),
        "data.val_files": dataset(folder / "val.parquet", 2),
        "actor_rollout_ref.model.path": model,
        "critic.model.path": model,
    }


def refusal(demo: DictConfig) -> str:
    """The one line with which a run is refused."""
    with pytest.raises(AtlasError) as caught:
        preflight(demo, atlas_config(demo))
    assert "\n" not in str(caught.value)
    return str(caught.value)
