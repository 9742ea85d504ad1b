"""What tests with real processes need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.at_rest import all_given_back

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes import the same source tree as the test, installed or not."""
    own = [path for path in sys.path if Path(path).is_relative_to(ROOT)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(dict.fromkeys(own)))


@pytest.fixture(autouse=True)
def requests_give_back_what_they_took(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However a test's requests end: a router that has ended holds nothing for them."""
    with all_given_back(monkeypatch):
        yield
