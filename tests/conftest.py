"""Fixtures that tests of several rooms need."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"
"""Data and cases that lie beside the checkout, not in it."""


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the checkout; the test is skipped where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the folder {SHARED}, which is not here")
    return SHARED
