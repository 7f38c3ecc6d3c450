"""Fixtures that tests of several rooms need."""

from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

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


class OneEngineAtATime(LoadScopeScheduling):
    """Heavy folders are one piece of work, any other file is its own: for runs in several processes."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        return "engines" if path.split("/")[1] in HEAVY else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneEngineAtATime:
    """How tests are handed out."""
    return OneEngineAtATime(config, log)
