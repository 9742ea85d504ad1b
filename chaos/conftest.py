"""A scene has twenty minutes. Measurements are printed at the end, test by test."""

from __future__ import annotations

import pytest

from chaos.rig.notes import Notes

SCENE_TIMEOUT_S = 1200
FIGURES = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(SCENE_TIMEOUT_S))


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Notes:
    """The notes of a scene."""
    return Notes(request.node.name, request.config.stash.setdefault(FIGURES, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = terminalreporter.config.stash.get(FIGURES, [])
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
