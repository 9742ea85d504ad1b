"""A plug-in of pytest: no test starts after a point in time, and the summary says how many did not."""

from __future__ import annotations

import os
import time

import pytest

UNTIL = "EVENKEEL_QUICK_UNTIL"
"""The variable with the time, in seconds since 1970."""
LATE = "no time was left: make test runs it"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > float(os.environ[UNTIL]):
        pytest.skip(LATE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    late = [one for one in terminalreporter.stats.get("skipped", []) if LATE in str(one.longrepr)]
    if late:
        terminalreporter.write_line(
            f"{len(late)} tests did not run: no time was left (make test runs them)"
        )
