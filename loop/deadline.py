"""A plug-in of pytest: after some time no further test starts, and the summary says how many did not."""

from __future__ import annotations

import os
import time

import pytest

TIME_S = "EVENKEEL_QUICK_S"
"""The variable with the seconds from the end of the collection to the last start of a test."""
LATE = "no time was left: make test runs it"
UNTIL = pytest.StashKey[float]()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[UNTIL] = time.monotonic() + float(os.environ[TIME_S])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[UNTIL]:
        pytest.skip(LATE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    late = [one for one in terminalreporter.stats.get("skipped", []) if LATE in str(one.longrepr)]
    if late:
        terminalreporter.write_line(f"{len(late)} tests did not run: {LATE}")
