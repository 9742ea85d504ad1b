"""Every link and anchor of a document exists, and pages and cells are short."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.support.documents import anchors, cells, documents, links, user_pages, words
from tests.support.numbered_lists import outside_their_item
from tests.support.plain_words import ROOT

MAX_WORDS: Final = 1500
MAX_WORDS_OF_A_CELL: Final = 12
MAX_SAME_OPENINGS: Final = 3
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _terms(text: str) -> set[str]:
    """The longer words of a text, in lower case; a name in CamelCase is several."""
    return {word.lower() for word in re.findall(r"[A-Za-z]{3,}", _CAMEL.sub(" ", text))} - {
        "evenkeel",
        "the",
        "and",
        "for",
    }


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


def first_sentence(page: Path) -> str:
    """The text after the title, up to the end of its first sentence or paragraph."""
    found = re.search(
        r"^# [^\n]*\n\s*(.+?)(?:\n\n|\Z)",
        _COMMENT.sub("", page.read_text()),
        re.MULTILINE | re.DOTALL,
    )
    assert found is not None
    return re.split(r"(?<=[.:])\s", " ".join(found[1].split()))[0]


OPENED: Final = [p for p in user_pages() if p.name not in ("README.md", "index.md")]
"""Pages that open with a sentence; a first page opens with links."""


@pytest.mark.parametrize("page", OPENED, ids=of)
def test_a_page_opens_with_words_of_its_title(page: Path) -> None:
    title = re.search(r"^# (.*)$", page.read_text(), re.MULTILINE)
    assert title is not None
    named = {word[:5] for word in _terms(title[1]) if word not in ("with", "what", "which")}
    assert named & {word[:5] for word in _terms(first_sentence(page))}


def test_few_pages_open_with_the_same_three_words() -> None:
    """A reader of search results sees the openings: they have to differ."""
    openings = Counter(
        " ".join(first_sentence(page).lower().split()[:3]) for page in documents() if page in OPENED
    )
    assert {words: n for words, n in openings.items() if n > MAX_SAME_OPENINGS} == {}


@pytest.mark.parametrize("page", documents(), ids=of)
def test_what_belongs_to_a_numbered_item_is_indented_by_four(page: Path) -> None:
    """With three spaces the site ends the list there, and counts from 1 again."""
    assert list(outside_their_item(page.read_text())) == []


def test_a_block_that_ends_a_numbered_list_is_found() -> None:
    right = "1. First:\n\n    ```sh\n  x\n    ```\n\n    More.\n\n2. Second\n   goes on.\n\nText.\n"
    assert list(outside_their_item(right)) == []
    assert list(outside_their_item(right.replace("\n    ", "\n   "))) == [3, 7]


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
