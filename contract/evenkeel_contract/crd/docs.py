"""Reads the docstring under each field of a dataclass from the source; Python does not keep it."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType


@cache
def field_docs(cls: type) -> Mapping[str, str]:
    """Field → its docstring on one line. Fields without one are absent."""
    return _module_docs(sys.modules[cls.__module__])[cls.__name__]


@cache
def _module_docs(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: _class_docs(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_docs(cls: ast.ClassDef) -> Mapping[str, str]:
    found = {}
    for field, doc in zip(cls.body, cls.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
            found[field.target.id] = " ".join(str(doc.value.value).split())
    return found
