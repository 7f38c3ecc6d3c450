from pathlib import Path
from typing import Any

import pytest
from model_fixtures import small_model, urn

from atlas_rl.models.demonstrations import Protocol
from atlas_rl.models.folder import load_tokenizer


@pytest.fixture(scope="session")
def small_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session")
def tokenizer(small_dir: Path) -> Any:
    return load_tokenizer(small_dir)


@pytest.fixture(scope="session")
def protocol(tokenizer: Any) -> Protocol:
    return Protocol(tokenizer, urn())
