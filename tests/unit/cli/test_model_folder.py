"""A folder that cannot be loaded as a model is refused before anything tries."""

import json
import os
from pathlib import Path

import pytest
from start_of_a_run import model_folder

from atlas_rl.cli.model_folder import ModelFolder, fingerprint, read_model_folder, read_tokenizer_folder
from atlas_rl.errors import ConfigError

KEY = "actor_rollout_ref.model.path"


def refusal(folder: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_model_folder(KEY, folder)
    return str(caught.value)


def test_a_model_folder_is_read(tmp_path: Path) -> None:
    folder = read_model_folder(KEY, model_folder(tmp_path / "m", vocab_size=300))
    assert (folder.vocab_size, folder.max_position_embeddings) == (300, 2048)


def test_a_multimodal_model_keeps_its_numbers_one_level_down(tmp_path: Path) -> None:
    model_folder(tmp_path / "m", text_config={"vocab_size": 300, "max_position_embeddings": 64})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    nested = {"architectures": config["architectures"], "text_config": config["text_config"]}
    (tmp_path / "m" / "config.json").write_text(json.dumps(nested))
    folder = read_model_folder(KEY, str(tmp_path / "m"))
    assert (folder.vocab_size, folder.max_position_embeddings) == (300, 64)


def test_a_number_that_the_model_lacks_is_named(tmp_path: Path) -> None:
    folder = ModelFolder(key=KEY, path=tmp_path, config={}, fingerprint="")
    with pytest.raises(ConfigError) as caught:
        _ = folder.vocab_size
    assert str(caught.value) == f"{tmp_path}/config.json: vocab_size must be a whole number, got None; add it"


def test_a_missing_folder_is_refused() -> None:
    assert refusal("Qwen/Qwen3-0.6B") == (
        f"{KEY}=Qwen/Qwen3-0.6B: no such folder; give a local Hugging Face model folder"
    )


def test_a_path_that_ends_with_a_slash_is_refused_because_verl_asserts_it(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    assert refusal(f"{folder}/") == f"{KEY}={folder}/: verl refuses a path that ends with a slash; write {folder}"


def test_a_folder_without_config_json_is_no_model(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == (f"{KEY}={tmp_path}: no config.json there; give a local Hugging Face model folder")


def test_a_broken_config_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert refusal(str(tmp_path)).startswith(f"{tmp_path}/config.json: no JSON: Expecting property name")
    (tmp_path / "config.json").write_text("[]")
    assert refusal(str(tmp_path)) == f"{tmp_path}/config.json: must hold a JSON object, got list; save the model again"


def test_a_model_of_no_architecture_is_refused_because_verl_asserts_one(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", architectures=None)
    assert refusal(folder) == f"{folder}/config.json: architectures must name one class, got None; correct it"


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    assert refusal(folder) == f"{KEY}={folder}: no *.safetensors file there; save the weights as safetensors"


def test_a_weight_file_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    index = tmp_path / "m" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}}))
    assert refusal(folder) == f"{index}: names model-2.safetensors, which is not there (1 missing); copy it too"


def test_a_weight_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    size = weights.stat().st_size
    os.truncate(weights, size - 1)
    assert refusal(folder) == f"{weights}: {size - 1} bytes, its header says {size}; copy it again"
    os.truncate(weights, 20)
    assert refusal(folder).startswith(f"{weights}: 20 bytes with a header of ")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError) as caught:
        read_tokenizer_folder(KEY, folder)
    assert str(caught.value) == (
        f"{KEY}={folder}: no tokenizer there (tokenizer.json, vocab.json, tokenizer.model); save it beside the model"
    )


def test_the_fingerprint_follows_configuration_tokenizer_and_weights(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    model_folder(folder)
    seen = [fingerprint(folder)]
    (folder / "README.md").write_text("not part of the model")
    assert fingerprint(folder) == seen[0]
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    seen.append(fingerprint(folder))
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    seen.append(fingerprint(folder))
    model_folder(folder, vocab_size=513)
    seen.append(fingerprint(folder))
    assert len(set(seen)) == 4


def test_a_large_weight_file_is_sampled_over_its_whole_length(tmp_path: Path) -> None:
    size = 80 * 2**20
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + size)
    before = fingerprint(tmp_path)
    with file.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x01")
    assert fingerprint(tmp_path) != before
