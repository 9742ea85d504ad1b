"""Reads Markdown documents: headings, links, tables, words and blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.plain_words import ROOT, texts

ALL: Final = (
    "*.md",
    "docs/**/*.md",
    "bench/**/*.md",
    "charts/*.md",
    "chaos/*.md",
    "e2e/*.md",
    "images/*.md",
)
DESIGN: Final = ROOT / "docs" / "design"
_FENCE: Final = re.compile(r"^( *)(```+|~~~+)(.*?)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_SPAN: Final = re.compile(r"`[^`\n]*`")
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_IMAGE: Final = re.compile(r"<(?:img|source)[^>]* src(?:set)?=\"([^\"]+)\"")
_HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of code."""

    path: Path
    line: int
    kind: str
    text: str
    note: str
    """The HTML comment on the line before it, empty without one."""


def documents() -> list[Path]:
    """Every Markdown file of the tree."""
    return list(texts(*ALL))


def user_pages() -> list[Path]:
    """The README and the pages of the site, without the design notes."""
    return [
        ROOT / "README.md",
        *(path for path in texts("docs/**/*.md") if DESIGN not in path.parents),
    ]


def blanked(text: str) -> str:
    """The text without blocks of code and comments; lines keep their numbers."""
    for pattern in (_FENCE, _COMMENT):
        text = pattern.sub(lambda found: "\n" * found.group().count("\n"), text)
    return text


def links(path: Path) -> Iterator[tuple[int, str]]:
    """Line and target of each link and image to a file or an anchor of the tree."""
    text = blanked(path.read_text(encoding="utf-8"))
    without_code = _SPAN.sub(lambda found: " " * len(found.group()), text)
    for pattern in (_LINK, _IMAGE):
        for found in pattern.finditer(without_code):
            if not re.match(r"[a-z]+:", found[1]):
                yield text[: found.start()].count("\n") + 1, found[1]


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a document's headings, as GitHub and the site make them."""
    found: dict[str, int] = {}
    result = set()
    for heading in _HEADING.findall(blanked(path.read_text(encoding="utf-8"))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        number = found.setdefault(slug, 0)
        found[slug] += 1
        result.add(f"{slug}-{number}" if number else slug)
    return frozenset(result)


def words(path: Path) -> int:
    """The words of a page that a reader reads: without code, comments and targets of links."""
    text = _SPAN.sub("x", blanked(path.read_text(encoding="utf-8")))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return len(re.findall(r"\w[\w'’.-]*", text))


def cells(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each cell of a table; code counts as one word."""
    text = blanked(path.read_text(encoding="utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")):
                yield number, re.sub(r"\]\([^)]*\)", "]", _SPAN.sub("x", cell)).strip()


def blocks(path: Path) -> Iterator[Block]:
    """The fenced blocks of code."""
    text = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        before = text[: found.start()].rstrip()
        note = re.search(r"<!-- *(.*?) *-->$", before)
        indent = found[1]
        body = "".join(line.removeprefix(indent) for line in found[4].splitlines(keepends=True))
        line = text[: found.start()].count("\n") + 1
        yield Block(path, line, found[3].strip(), body, note[1] if note else "")
