"""Walks through the code: the files that ARCHITECTURE.md lists for one, and those that run code meanwhile."""

from __future__ import annotations

import re
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

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
    with _profiled(folders, lambda frame, event, _: event == "call" and counts(frame)) as found:
        yield found


@contextmanager
def carrying(folders: tuple[str, ...], number: float) -> Iterator[set[str]]:
    """The files in these folders of which functions take or give the number in the context, in threads that begin there too.

    `self` does not count, and neither does what an object that changes holds.
    """

    def counts(frame: FrameType, event: str, given: object) -> bool:
        if event == "return":
            return holds(given, number)
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return any(holds(frame.f_locals.get(name), number) for name in names if name != "self")

    with _profiled(folders, counts) as found:
        yield found


def holds(value: object, number: float, depth: int = 4) -> bool:
    """Whether a value is the number, a line that ends with it, or a frozen value or collection that contains it."""
    if isinstance(value, bool | int | float):
        return value == number
    if isinstance(value, str):
        return f" {number!r}\n" in value
    if not depth or value is None:
        return False
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif (
        isinstance(value, tuple | array) or type(value) is list
    ):  # iterating a kind of list may change it
        parts = value
    elif isinstance(value, msgspec.Struct):
        parts = msgspec.structs.astuple(value)
    elif is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        parts = [getattr(value, one.name) for one in fields(value)]
    return any(holds(part, number, depth - 1) for part in parts)


@contextmanager
def _profiled(
    folders: tuple[str, ...], counts: Callable[[FrameType, str, object], bool]
) -> Iterator[set[str]]:
    product = tuple(f"{ROOT}/{folder}/" for folder in folders)
    found = set[str]()

    def note(frame: FrameType, event: str, given: Any) -> None:
        path = frame.f_code.co_filename
        if not path.startswith(product) or frame.f_code.co_name == "<module>":
            return
        file = path.removeprefix(f"{ROOT}/")
        if file not in found and counts(frame, event, given):
            found.add(file)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
