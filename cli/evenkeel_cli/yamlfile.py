"""A YAML file → its documents, each with the line of every path, so that a fault can be found and mended.

Place in the flow: **file** → `manifest` → what runs. Stricter than YAML itself: a key given twice is a fault
(YAML lets the last one win; here the first does, so that the rest can still be checked), and dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import yaml

MAX_BYTES: Final = 4 * 1024 * 1024


class YamlFault(ValueError):
    """A file that cannot be read as YAML; the message begins with the file and the line."""


class Place(NamedTuple):
    """Both from 1; 0 stands for the whole file."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file."""

    number: int
    """From 1."""
    data: object
    node: yaml.Node
    repeated: tuple[tuple[Place, str], ...] = ()
    """Every key that a mapping holds already, by name."""

    def place_of(self, path: str) -> Place:
        """Where the field at `path` is, or the nearest that is there."""
        node = self.node
        place = _place(node)
        for step in _steps(path):
            found = _child(node, step)
            if found is None:
                break
            place, node = found
        return place


def read_documents(path: Path) -> list[Document]:
    """All documents of a file that are not empty; raises `YamlFault`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise YamlFault(f"{path}: cannot be read: {error.strerror or error}") from error
    documents = parse_documents(data, str(path))
    for document in documents:
        for place, key in document.repeated:
            raise YamlFault(f"{path}:{place.line}: {given_twice(key)}")
    return documents


def given_twice(key: str) -> str:
    """What is wrong with a repeated key."""
    return f"{key!r} is given twice in one mapping"


def parse_documents(data: bytes, name: str) -> list[Document]:
    """All documents of a file's bytes that are not empty; raises `YamlFault` for what is no YAML."""
    if len(data) > MAX_BYTES:
        raise YamlFault(f"{name}: is longer than {MAX_BYTES} bytes")
    try:
        return [document for document in _documents(data) if document.data is not None]
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise YamlFault(f"{name}{line}: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise YamlFault(f"{name}: is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise YamlFault(f"{name}: is nested too deeply") from error
    except ValueError as error:  # a scalar that looks like a number and is none, such as 0x
        raise YamlFault(f"{name}: is not YAML: {error}") from error


def _documents(data: bytes) -> Iterator[Document]:
    loader = _Loader(data)
    try:
        number = 0
        while loader.check_node():
            number += 1
            node = cast(yaml.Node, loader.get_node())  # there is one, as check_node said
            loader.repeated.clear()
            data_of_node = loader.construct_document(node)
            yield Document(number, data_of_node, node, tuple(loader.repeated))
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Safe YAML without dates; of keys given twice it keeps the first and notes the others."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.repeated: list[tuple[Place, str]] = []

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            node.value = list(self._first_of_each(node.value))
        return super().construct_mapping(node, deep)

    def _first_of_each(self, pairs: Any) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        seen: set[str] = set()
        for key_node, value_node in pairs:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen and key != "<<":
                self.repeated.append((_place(key_node), key))
                continue
            if key is not None:
                seen.add(key)
            yield key_node, value_node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]|\[(.+?)\]")


def _steps(path: str) -> Iterator[str | int]:
    for name, index, quoted in _STEP.findall(path):
        yield int(index) if index else name or quoted.strip("'\"")


def _place(node: yaml.Node) -> Place:
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _child(node: yaml.Node, step: str | int) -> tuple[Place, yaml.Node] | None:
    """Where the entry is, and its value."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        if step < len(node.value):
            entry = node.value[step]
            return _place(entry), entry
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == step:
                return _place(key), value
    return None
