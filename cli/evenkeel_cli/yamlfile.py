"""Reads the documents of a YAML file, with the line of every field for error messages.

It is stricter than YAML: a repeated key is a fault, and the first value is used to check the rest. Dates stay text.
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
    """The file is not valid YAML; the text begins with the file and the line."""

    def __init__(self, file: str, message: str, *, line: int | None = None) -> None:
        super().__init__(f"{file}: {message}" if line is None else f"{file}:{line}: {message}")
        self.message = message
        self.line = line


class Position(NamedTuple):
    """Line and column from 1; 0 means the whole file."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file."""

    number: int
    """Number of the document in the file, from 1."""
    data: object
    node: yaml.Node
    repeated: tuple[tuple[Position, str], ...] = ()
    """Every repeated key of a mapping: its position and its name."""

    def position_of(self, path: str) -> Position:
        """The position of the field at `path`, or of its nearest ancestor in the file."""
        node = self.node
        position = _position(node)
        for step in _steps(path):
            found = _child(node, step)
            if found is None:
                break
            position, node = found
        return position


def read_documents(path: Path) -> list[Document]:
    """All documents of a file that are not empty; raises `YamlFault`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise YamlFault(str(path), f"cannot be read: {error.strerror or error}") from error
    documents = parse_documents(data, str(path))
    for document in documents:
        for position, key in document.repeated:
            raise YamlFault(str(path), given_twice(key), line=position.line)
    return documents


def given_twice(key: str) -> str:
    """The message for a repeated key."""
    return f"{key!r} is given twice in one mapping"


def parse_documents(data: bytes, name: str) -> list[Document]:
    """All documents in a file's bytes that are not empty; raises `YamlFault` for invalid YAML."""
    if len(data) > MAX_BYTES:
        raise YamlFault(name, f"is longer than {MAX_BYTES} bytes")
    try:
        return [document for document in _documents(data) if document.data is not None]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise YamlFault(name, f"{error.problem or error.context}", line=line) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise YamlFault(name, f"is not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise YamlFault(name, "is nested too deeply") from error
    except ValueError as error:  # a scalar that resembles a number, such as 0x
        raise YamlFault(name, f"is not valid YAML: {error}") from error


def _documents(data: bytes) -> Iterator[Document]:
    loader = _Loader(data)
    try:
        number = 0
        while loader.check_node():
            number += 1
            node = cast(yaml.Node, loader.get_node())  # check_node found one
            loader.repeated.clear()
            data_of_node = loader.construct_document(node)
            yield Document(number, data_of_node, node, tuple(loader.repeated))
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Safe YAML without dates; of a repeated key it keeps the first value and records the others."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.repeated: list[tuple[Position, str]] = []

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            node.value = list(self._first_of_each(node.value))
        return super().construct_mapping(node, deep)

    def _first_of_each(self, pairs: Any) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        seen: set[str] = set()
        for key_node, value_node in pairs:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen and key != "<<":
                self.repeated.append((_position(key_node), key))
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


def _position(node: yaml.Node) -> Position:
    return Position(node.start_mark.line + 1, node.start_mark.column + 1)


def _child(node: yaml.Node, step: str | int) -> tuple[Position, yaml.Node] | None:
    """The position of an entry, and its value."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        if step < len(node.value):
            entry = node.value[step]
            return _position(entry), entry
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == step:
                return _position(key), value
    return None
