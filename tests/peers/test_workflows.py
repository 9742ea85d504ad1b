"""actionlint and shellcheck judge the workflows, and find nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.peers.programs import BIN, ROOT, said_by

WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FAULTY: Final = """\
on: push
jobs:
  one:
    runs-on: ubuntu-24.04
    steps:
      - run: echo ${{ github.no_such_field }}
      - run: rm $FILES
"""


def found_in(*workflows: Path) -> str:
    return said_by("actionlint", f"-shellcheck={BIN / 'shellcheck'}", *workflows)


def test_actionlint_and_shellcheck_find_nothing_in_the_workflows() -> None:
    assert WORKFLOWS
    assert found_in(*WORKFLOWS) == ""


def test_actionlint_and_shellcheck_find_faults(tmp_path: Path) -> None:
    workflow = tmp_path / "faulty.yml"
    workflow.write_text(FAULTY)
    said = found_in(workflow)
    assert "no_such_field" in said
    assert "SC2086" in said  # a word without quotes
