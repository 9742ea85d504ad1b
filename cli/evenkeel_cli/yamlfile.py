"""A YAML file → its documents, each with the line of every path, so that a fault can be found and mended.

Place in the flow: **file** → `manifest` → what runs. Stricter than YAML itself: a key given twice is a fault
(YAML lets the last one win), and dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

MAX_BYTES: Final = 4 * 1024 * 1024


class YamlFault(ValueError):
    """A file that cannot be read as YAML; the message begins with the file and the line."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file."""

    number: int
    """From 1."""
    data: object
    node: yaml.Node

    def line_of(self, path: str) -> int:
        """The line, from 1, of the field at `path`, or of the nearest that is there."""
        node = self.node
        line: int = node.start_mark.line + 1
        for step in _steps(path):
            found = _child(node, step)
            if found is None:
                break
            line, node = found
        return line


def read_documents(path: Path) -> list[Document]:
    """All documents of a file that are not empty; raises `YamlFault`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise YamlFault(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_documents(data, str(path))


def parse_documents(data: bytes, name: str) -> list[Document]:
    """All documents of a file's bytes that are not empty; raises `YamlFault`."""
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
            yield Document(number, loader.construct_document(node), node)
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """Safe YAML without dates and without keys given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in getattr(node, "value", ()):
            key = getattr(key_node, "value", None)
            if isinstance(key, str) and key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice in one mapping", key_node.start_mark
                )
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in pairs if tag != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]|\[(.+?)\]")


def _steps(path: str) -> Iterator[str | int]:
    for name, index, quoted in _STEP.findall(path):
        yield int(index) if index else name or quoted.strip("'\"")


def _child(node: yaml.Node, step: str | int) -> tuple[int, yaml.Node] | None:
    """Line of the entry and its value."""
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        if step < len(node.value):
            entry = node.value[step]
            return entry.start_mark.line + 1, entry
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == step:
                return key.start_mark.line + 1, value
    return None
