"""The search of the site finds the page that people want, for thirty questions that were written before it was tried."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.plain_words import ROOT
from tests.support.site_search import MIN_FIRST, misses, questions

MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"


def test_there_are_thirty_questions_and_their_pages_exist() -> None:
    assert len(questions()) == 30
    assert [page for page in questions().values() if not (ROOT / f"docs/{page}.md").exists()] == []


@pytest.mark.skipif(
    not MKDOCS.exists() or shutil.which("node") is None, reason="needs `make docs` and Node"
)
def test_the_page_wanted_is_the_first_result(tmp_path: Path) -> None:
    subprocess.run(
        [MKDOCS, "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    missed = list(misses(tmp_path))
    assert len(questions()) - len(missed) >= MIN_FIRST, missed
