"""Every link and anchor of a document exists, and pages and cells are short."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.documents import anchors, cells, documents, links, user_pages, words
from tests.support.plain_words import ROOT

MAX_WORDS: Final = 1500
MAX_WORDS_OF_A_CELL: Final = 12


def of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def fault_of(page: Path, target: str) -> str | None:
    """Why a link leads nowhere."""
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        return "no such file"
    if anchor and (file.suffix != ".md" or anchor not in anchors(file)):
        return "no such heading"
    return None


@pytest.mark.parametrize("page", documents(), ids=of)
def test_every_link_and_anchor_exists(page: Path) -> None:
    found = [(line, target, fault_of(page, target)) for line, target in links(page)]
    assert [one for one in found if one[2]] == []


@pytest.mark.parametrize("page", user_pages(), ids=of)
def test_a_page_is_short_and_so_are_the_cells_of_its_tables(page: Path) -> None:
    assert words(page) <= MAX_WORDS
    long = [(line, cell) for line, cell in cells(page) if len(cell.split()) > MAX_WORDS_OF_A_CELL]
    assert long == []


def test_a_page_says_first_what_it_is_for() -> None:
    """Runbooks have a form of their own: Meaning, Check, Do."""
    pages = [
        p
        for p in user_pages()
        if p.name not in ("README.md", "index.md") and p.parent.name != "runbooks"
    ]
    assert [of(p) for p in pages if "\nAfter this page " not in p.read_text()] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """Runbooks and design notes are found by their first pages."""
    listed = set(
        re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    )
    folders = ("tutorials", "how-to", "reference", "explanation")
    pages = {
        str(page.relative_to(ROOT / "docs")) for page in user_pages() if page.name != "README.md"
    }
    assert {page for page in pages if page.startswith(folders)} == listed & pages - {"index.md"}
    assert {page for page in listed if not (ROOT / "docs" / page).exists()} == set()


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("docs/reference/errors.md#codes", None),
        ("docs/reference/errors.md#no-such-heading", "no such heading"),
        ("docs/reference/no-such-page.md", "no such file"),
        ("Makefile#env", "no such heading"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(target: str, fault: str | None) -> None:
    assert fault_of(ROOT / "README.md", target) == fault


def test_words_cells_and_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A *title* of `code`\n\nThree words [here](a.md#b).\n\n```sh\n[no](c.md)\n```\n"
        f"\n| a | {'word ' * 13}|\n|---|---|\n<!-- [no](d.md) -->\n"
    )
    assert list(links(page)) == [(3, "a.md#b")]
    assert anchors(page) == {"a-title-of-code"}
    assert words(page) == 4 + 3 + 1 + 13
    assert max(len(cell.split()) for _, cell in cells(page)) == 13


def test_surviving_mutants_quote_lines_of_the_code() -> None:
    """`tests/mutation/run.py` compares whole lines, so that a quotation of a changed line explains nothing."""
    quoted = re.findall(r"^- (.+)$", (ROOT / "docs/design/mutation.md").read_text(), re.MULTILINE)
    places = ("[a-z]*", "plugins/*")
    files = [file for place in places for file in ROOT.glob(f"{place}/evenkeel_*/**/*.py")]
    lines = {line.strip() for file in files for line in file.read_text().splitlines()}
    assert quoted
    assert [line for line in quoted if line not in lines] == []
