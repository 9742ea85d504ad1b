"""Walks through the code: the files that ARCHITECTURE.md lists for one, and those that run code meanwhile."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]


def listed(before: str, rooms: Mapping[str, str]) -> set[str]:
    """The files of the list that follows the words `before`, from the root of the tree.

    `rooms`: by the first word of a line, the folder of its files; by default that of the package of this name.
    """
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(rf"{re.escape(before)}.*?```\n(.*?)```", text, re.DOTALL)
    assert block is not None, before
    found = set()
    for line in block[1].splitlines():
        room, names = line.split(maxsplit=1)
        folder = rooms.get(room, f"{room}/evenkeel_{room}")
        found |= {f"{folder}/{name}.py" for name in names.split(", ")}
    return found


@contextmanager
def noted(
    folders: tuple[str, ...], counts: Callable[[FrameType], bool] = lambda _: True
) -> Iterator[set[str]]:
    """The files in these folders of which functions are called in the context and count, from the root of the tree."""
    product = tuple(f"{ROOT}/{folder}/" for folder in folders)
    found = set[str]()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(product) or frame.f_code.co_name == "<module>":
            return
        file = path.removeprefix(f"{ROOT}/")
        if file not in found and counts(frame):
            found.add(file)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
