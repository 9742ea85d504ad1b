"""Every number that the product names: constants of modules and classes, bounds, defaults of records and of parameters.

A limit or a time that nobody waits for in a test can be wrong without a failure. Here it changes only together with a line
that a reviewer reads. If a change is meant, write the file anew and read the difference in review:

    EVENKEEL_WRITE_GOLDEN=1 python -m pytest tests/golden/test_golden_numbers.py
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

import msgspec

GOLDEN = Path(__file__).parent / "numbers.txt"
PACKAGES = (
    "contract",
    "fairshare",
    "kube",
    "operator",
    "router",
    "simulator",
    "cli",
    "plugin",
    "sglang",
)
LEFT_OUT = ("__main__",)
"""Modules that do something when they are imported."""
OF_PYTHON = ("__", "_is_", "_use_")
"""Beginnings of the names of what the interpreter adds to a class."""
MEASURED = ("evenkeel_simulator.server.operations._STARTED_S",)
"""Numbers of this run."""


def is_number(value: object) -> bool:
    """A number, a time, or a collection of nothing else."""
    if isinstance(value, int | float | timedelta):
        return not hasattr(value, "name")  # a member of an enumeration has a name of its own
    if isinstance(value, Mapping):
        return bool(value) and all(map(is_number, value.values()))
    if isinstance(value, tuple | frozenset):
        return bool(value) and all(map(is_number, value))
    return False


def shown(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(shown, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {shown(one)}' for key, one in value.items())}}}"
    return repr(value)


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        root = importlib.import_module(f"evenkeel_{package}")
        for found in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            if found.name.rpartition(".")[2] not in LEFT_OUT:
                yield importlib.import_module(found.name)


def bounds_of(hint: object) -> str:
    """The bounds of an annotated type, as they are written; empty if it has none."""
    found = [str(one) for one in getattr(hint, "__metadata__", ())]
    return ", ".join(one for one in found if any(map(str.isdigit, one)) and " at 0x" not in one)


def is_record(of: object) -> bool:
    return isinstance(of, type) and (is_dataclass(of) or issubclass(of, msgspec.Struct))


def has_bounds(of: object) -> bool:
    """Whether it is a record of the contract, whose fields check what others send."""
    return is_record(of) and of.__module__.startswith("evenkeel_contract")


def defaults(of: object) -> Iterator[tuple[str, object]]:
    """Defaults of the parameters of a function, or of the fields of a record."""
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        yield from ((field.name, field.default) for field in msgspec.structs.fields(of))
    elif isinstance(of, type) and is_dataclass(of):
        yield from ((field.name, field.default) for field in fields(of))
    elif isinstance(of, FunctionType):
        for name, parameter in inspect.signature(of).parameters.items():
            yield name, parameter.default


def assigned(module: ModuleType) -> frozenset[str]:
    """Names that the module's own statements give a value."""
    names = set()
    for statement in ast.parse(inspect.getsource(module)).body:
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        names |= {one.id for one in targets if isinstance(one, ast.Name)}
    return frozenset(names)


def numbers() -> Iterator[str]:
    """Lines of the golden file."""
    for module in modules():
        own = assigned(module)
        for name, value in vars(module).items():
            where = f"{module.__name__}.{name}"
            if name in own and (bounds := bounds_of(value)):
                yield f"{where}: {bounds}"
            if name in own and is_number(value) and where not in MEASURED:
                yield f"{where} = {shown(value)}"
            if getattr(value, "__module__", "") == module.__name__:
                yield from of_definition(where, value)


def of_definition(where: str, value: object) -> Iterator[str]:
    """Lines of a class or function. A default of 0 or False has none, and gets one if it changes."""
    methods = vars(value) if isinstance(value, type) and not is_record(value) else {}
    for name, one in methods.items():
        if is_number(one) and one and not name.startswith(OF_PYTHON):
            yield f"{where}.{name} = {shown(one)}"
    for owner, one in ((where, value), *((f"{where}.{k}", v) for k, v in methods.items())):
        hints = get_type_hints(one, include_extras=True) if has_bounds(one) else {}
        for field, hint in hints.items():
            if field in one.__annotations__ and (bounds := bounds_of(hint)):
                yield f"{owner}({field}): {bounds}"
        for field, default in defaults(one):
            if is_number(default) and default:
                yield f"{owner}({field}) = {shown(default)}"


def test_a_number_changes_only_together_with_its_line() -> None:
    text = "".join(f"{line}\n" for line in sorted(set(numbers())))
    if os.environ.get("EVENKEEL_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), f"{GOLDEN} differs; write it anew as this module says"
