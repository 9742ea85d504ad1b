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


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run in which no test had time to start is no success."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and _late(reporter) and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if late := _late(terminalreporter):
        terminalreporter.write_line(f"{len(late)} tests did not run: {LATE}")


def _late(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    return [one for one in reporter.stats.get("skipped", []) if LATE in str(one.longrepr)]
