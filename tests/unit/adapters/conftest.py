from pathlib import Path

import pytest
import torch
from adapter_models import write_base


@pytest.fixture(scope="session", params=["qwen3", "llama"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Float32, tied for Qwen3 and untied with biases for Llama."""
    return write_base(tmp_path_factory.mktemp("bases") / request.param, request.param)


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "float32", "qwen3")


@pytest.fixture(scope="session")
def bf16_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("bases") / "bf16", "llama", dtype=torch.bfloat16, shard_size="30KB")
