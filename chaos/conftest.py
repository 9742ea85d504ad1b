"""A scene has twenty minutes. Measurements are printed at the end, test by test."""

from __future__ import annotations

import pytest

from chaos.rig.notes import Notes

SCENE_TIMEOUT_S = 1200
FIGURE = "figure"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(SCENE_TIMEOUT_S))


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Notes:
    """The notes of a scene."""
    return Notes(
        request.node.name, lambda text: request.node.user_properties.append((FIGURE, text))
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Reports have them, also those of other workers.
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.getreports(kind)]
    figures = [text for one in reports for name, text in one.user_properties if name == FIGURE]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
