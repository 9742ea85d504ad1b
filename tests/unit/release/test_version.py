"""A release dates its section of the changelog, and the next version is raised in every file that states it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from release import __main__ as command
from release import changelog
from release.errors import ReleaseError
from release.names import ROOT, VERSION
from release.version import MINOR_STATED_IN, STATED_IN, next_minor, raise_version, replaced

OPEN: Final = "# Changelog\n\n## Unreleased (7.3.0)\n\n- new\n\n## 7.2.0 (2026-01-02)\n\n- old\n"
DATED: Final = OPEN.replace("Unreleased (7.3.0)", "7.3.0 (2026-11-27)")
WHERE: Final = ("*.md", "*.yaml", "*.yml", "*.cff", "*.toml", "images", ":!CHANGELOG.md", ":!bench", ":!docs/explanation", ":!docs/generate")  # fmt: skip
"""Where files state the version. Others have versions of measurements and of other projects."""


def test_a_release_dates_its_section_once() -> None:
    assert changelog.dated(OPEN, "7.3.0", date="2026-11-27") == DATED
    with pytest.raises(ReleaseError, match=r"no heading '## Unreleased \(7.3.0\)'"):
        changelog.dated(DATED, "7.3.0", date="2026-11-28")


def test_the_next_section_opens_after_the_release() -> None:
    opened = changelog.opened(DATED, "7.4.0")
    assert opened == DATED.replace("## 7.3.0", "## Unreleased (7.4.0)\n\n## 7.3.0")
    with pytest.raises(ReleaseError, match="make release-date"):
        changelog.opened(OPEN, "7.4.0")


def test_the_notes_of_a_release_are_its_dated_section() -> None:
    assert changelog.notes(DATED, "7.3.0") == "- new\n"
    assert changelog.notes(DATED, "7.2.0") == "- old\n"
    for text in (OPEN, DATED.replace("2026-11-27", "not published")):
        with pytest.raises(ReleaseError, match=r"no date for 7\.3\.0"):
            changelog.notes(text, "7.3.0")


@pytest.mark.parametrize("text", ["v7.3.0", "evenkeel-7.3.0.tgz", "router:7.3.0 .", "7.3.0-py3"])
def test_a_version_is_replaced_and_longer_numbers_stay(text: str) -> None:
    assert replaced(text, "7.3.0", "7.4.0") == text.replace("7.3.0", "7.4.0")
    longer = "0.7.3.0 17.3.0 7.3.01 7.3.0.1"
    assert replaced(longer, "7.3.0", "7.4.0") == longer


@pytest.mark.parametrize(
    ("to", "fault"), [("7.4", "three numbers"), ("v7.4.0", "three numbers"), ("7.3.1", "higher"), ("7.3.2", "higher")]
)  # fmt: skip
def test_only_a_higher_version_of_three_numbers_is_taken(
    to: str, fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ReleaseError, match=fault):
        raise_version(tmp_path, "7.3.2", to)


def test_every_file_that_states_the_version_is_raised(tmp_path: Path) -> None:
    stated = subprocess.run(
        ["git", "grep", "-lIE", rf"(^|[^0-9.]){re.escape(VERSION)}([^0-9]|$)", "--", *WHERE],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    raised = {
        str(path.relative_to(ROOT))
        for glob in (*STATED_IN, *MINOR_STATED_IN)
        for path in ROOT.glob(glob)
        if path.is_file()
    }
    assert set(stated) - raised == set()
    for name in raised:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    following = next_minor(VERSION)
    raise_version(tmp_path, VERSION, following)
    for name in {*stated} & raised | {*MINOR_STATED_IN}:
        text = (tmp_path / name).read_text()
        assert following.rpartition(".")[0] in text, name
        assert VERSION not in replaced(text, VERSION, ""), name


def test_a_tag_of_another_version_is_no_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip

    def fault() -> str:
        arguments = ["build", "--registry=r", f"--keys={tmp_path}", f"--out={tmp_path / 'none'}"]
        assert command.main(arguments) == 1
        return capsys.readouterr().err

    file = tmp_path / "CHANGELOG.md"
    file.write_text(f"## Unreleased ({VERSION})\n\n- new\n")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "_CHANGELOG", file)
    git("init", "--quiet")
    assert "uncommitted changes" in fault()
    git("add", ".")
    git("commit", "--message=x")
    assert "make release-date" in fault()
    assert command.main(["date", "2026-11-27"]) == 0
    git("commit", "--all", "--message=x")
    git("tag", "v0.0.1")
    assert f"the tag v0.0.1 is not the version {VERSION}" in fault()
