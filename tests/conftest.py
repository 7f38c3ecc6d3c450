"""Fixtures that tests of several rooms need."""

from pathlib import Path

import pytest

HEAVY = {"integration", "gpu"}
"""Folders whose tests start engines: never two at a time."""

SHARED = Path(__file__).parents[2] / "shared"
"""Data and cases that lie beside the checkout, not in it."""


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the checkout; the test is skipped where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"needs the folder {SHARED}, which is not here")
    return SHARED


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of heavy folders share one process when tests run in several."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in HEAVY:
            item.add_marker(pytest.mark.xdist_group("engines"))
