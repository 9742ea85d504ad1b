"""What tests with real processes need."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes import the same source tree as the test, installed or not."""
    own = [path for path in sys.path if Path(path).is_relative_to(ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(dict.fromkeys(own)))
