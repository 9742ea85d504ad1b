"""Programs from Go modules: what is built is said, and kept for each version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from images.errors import BuildError
from images.programs import MODULES, Component, build

PAUSE = Component("pause", MODULES / "pause")


@pytest.fixture(autouse=True)
def go() -> None:
    if shutil.which("go") is None:
        pytest.skip("no go")


def test_a_build_says_what_it_builds_and_keeps_the_program_of_each_version(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build([PAUSE], tmp_path)
    said = capfd.readouterr().out
    assert "building 1 programs, 1 at a time: pause" in said
    assert "pause: built in" in said
    first = (tmp_path / "pause").resolve()
    build([Component("pause", MODULES / "pause", flags="-X main.version=2")], tmp_path)
    assert (tmp_path / "pause").resolve() != first
    capfd.readouterr()
    build([PAUSE], tmp_path)  # back to the first version: it is there
    assert capfd.readouterr().out == ""
    assert (tmp_path / "pause").resolve() == first


def test_a_build_that_fails_is_reported_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"building pause failed:[^$]*no-such-folder"):
        build([Component("pause", MODULES / "pause", package="./no-such-folder")], tmp_path)
