"""The same check as `seams`, by the source of an SGLang that is not imported: a folder that has the package `sglang`.

It reads definitions, base classes and imports. What a module does at run time stays unseen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from evenkeel_sglang import seams


def places(folder: Path) -> Iterator[tuple[str, str]]:
    """(place in SGLang, why it does not fit or an empty text), as `seams.places`."""
    for seam in seams.SEAMS:
        found = parameters(folder, seam.path)
        yield seam.path, seams.differs(seam, found)
    scheduler = folder / f"{seams.SCHEDULER_MODULE.replace('.', '/')}.py"
    yield seams.LOOP, seams.loop_misfit(scheduler.read_text() if scheduler.is_file() else "")
    starts = {(parameters(folder, path) or ())[:2] for path in seams.MATCHERS}
    fits = bool(starts & {("req", "tree_cache"), ("tree_cache", "req")})
    yield " or ".join(seams.MATCHERS), "" if fits else "neither takes a request and a cache"


def parameters(folder: Path, path: str) -> tuple[str, ...] | None:
    """The parameters of a function or method as a caller sees them; None if it is not there."""
    module, *names = _split(folder, path)
    found = _find(folder, module, names)
    if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    every = found.args
    listed = [*every.posonlyargs, *every.args, every.vararg, *every.kwonlyargs, every.kwarg]
    names = [one.arg for one in listed if one is not None]
    decorators = {ast.unparse(one) for one in found.decorator_list}
    return tuple(names[1:] if "classmethod" in decorators else names)


def _split(folder: Path, path: str) -> list[str]:
    """The module, and the names in it."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        if _file(folder, ".".join(parts[:end])) is not None:
            return [".".join(parts[:end]), *parts[end:]]
    return ["", *parts]


def _file(folder: Path, module: str) -> Path | None:
    place = folder / module.replace(".", "/")
    candidates = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((one for one in candidates if one.is_file()), None)


@cache
def _body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


def _find(folder: Path, module: str, names: list[str]) -> ast.stmt | None:
    """The definition of a name in a module, also where it is imported or inherited."""
    path = _file(folder, module)
    if path is None or not names:
        return None
    first, *rest = names
    for node in _body(path):
        if isinstance(node, ast.ClassDef) and node.name == first:
            return _member(folder, module, node, rest[0]) if rest else node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == first:
            return None if rest else node
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == first:
                    return _find(folder, node.module, [alias.name, *rest])
    return None


def _member(folder: Path, module: str, node: ast.ClassDef, name: str) -> ast.stmt | None:
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == name:
            return one
    for base in node.bases:
        if isinstance(base, ast.Name):
            found = _find(folder, module, [base.id, name])
            if found is not None:
                return found
    return None
