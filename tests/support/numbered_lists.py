"""Finds numbered lists that the site numbers anew: Python-Markdown wants four spaces before what belongs to an item."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

INDENT: Final = 4
_NUMBER: Final = re.compile(r"\d+\. ")
_BLOCK: Final = ("```", "<!--", "|")


def outside_their_item(text: str) -> Iterator[int]:
    """Lines that belong to a numbered item and start a block with fewer than four spaces, so that the list ends there."""
    inside, blank, fenced = False, False, False
    for number, line in enumerate(text.splitlines(), 1):
        indent = len(line) - len(line.lstrip())
        block = line.lstrip().startswith(_BLOCK)
        if not fenced:
            if line and indent == 0:
                inside = bool(_NUMBER.match(line))
            elif inside and line and indent < INDENT and (blank or block):
                yield number
        if line.lstrip().startswith("```"):
            fenced = not fenced
        blank = not line
