"""The data of the comparison: each cell has a source that can be opened, and a date."""

from __future__ import annotations

import datetime
import re
from typing import Final

from docs.generate.comparison import address, load

DATA: Final = load()
MIN_SYSTEMS: Final = 12


def cells() -> list[tuple[str, str, list[str]]]:
    """Question, system and cell."""
    return [
        (question["title"], system, cell)
        for question in DATA["questions"]
        for system, cell in question["cells"].items()
    ]


def test_twelve_systems_are_compared_and_each_has_what_is_better_there() -> None:
    assert len(set(DATA["systems"])) >= MIN_SYSTEMS
    assert set(DATA["questions"][-1]["cells"]) == set(DATA["systems"])
    assert {system for _, system, _ in cells()} == {*DATA["systems"], "Evenkeel"}


def test_each_cell_has_a_text_and_at_least_one_known_source() -> None:
    assert [one for one in cells() if len(one[2]) < 2 or not one[2][0]] == []
    assert {name for *_, cell in cells() for name in cell[1:]} == set(DATA["sources"])


def test_each_source_is_a_commit_or_a_page_and_was_read_on_a_day() -> None:
    assert isinstance(DATA["read"], datetime.date)
    for name, source in DATA["sources"].items():
        assert ("repo" in source) + ("url" in source) + ("page" in source) == 1, name
        assert "repo" not in source or re.fullmatch("[0-9a-f]{40}", source["commit"]), name
        assert "page" in source or re.match(r"https://[a-z.]+/\S+$", address(source)), name


def test_the_source_of_a_system_is_not_that_of_another() -> None:
    own = {"Evenkeel": "Evenkeel", "Envoy AI Gateway": "Envoy", "Models-as-a-Service": "MaaS"}
    wrong = [
        (system, name)
        for _, system, cell in cells()
        for name in cell[1:]
        if not name.startswith(own.get(system, system))
    ]
    assert wrong == []
