"""What all tests of the router hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.at_rest import all_given_back


@pytest.fixture(autouse=True)
def requests_give_back_what_they_took(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """However a test's requests end: a router that has ended holds nothing for them."""
    with all_given_back(monkeypatch):
        yield
