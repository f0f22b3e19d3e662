import os
from pathlib import Path

import pytest
from hypothesis import settings

from problems import make_problem

SHARED = Path(__file__).resolve().parents[2] / "shared"
GOLDEN = Path(__file__).parent / "data" / "golden"

# No example has a deadline: compilation makes the first one slow, and other processes any of them.
settings.register_profile("ours", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("ours")
os.environ.setdefault("MPLBACKEND", "agg")


@pytest.fixture
def problem():
    return make_problem()


@pytest.fixture
def shared_data(monkeypatch):
    """The folder of real data sets, where it is."""
    folder = Path(os.environ.get("GPX_SCALE_DATA") or SHARED / "data")
    if not folder.is_dir():
        pytest.skip(f"no data folder at {folder} (set GPX_SCALE_DATA)")
    monkeypatch.setenv("GPX_SCALE_DATA", str(folder))
    return folder
