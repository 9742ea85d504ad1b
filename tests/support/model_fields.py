"""The fields of request models, as the package that defines them has them. Runs inside an engine's Python, and imports nothing of this tree.

    python model_fields.py '{"/v1/completions": ["package.module:Class", …], …}'

The last line is JSON: of each path the names. A model is a pydantic model, a dataclass, a structure, a TypedDict, a union of
these, or a function whose parameters are a form. A name that a validator reads from the raw body counts, too.
"""

import dataclasses
import importlib
import inspect
import json
import re
import sys
import typing

_READ = re.compile(r"""(?:data|values|obj)(?:\.get\(|\.pop\(|\[)["']([A-Za-z_0-9]+)["']""")


def names_of(model: typing.Any) -> set[str]:
    if inspect.isfunction(model):
        given = inspect.signature(model).parameters.values()
        return {getattr(one.default, "alias", None) or one.name for one in given}
    if hasattr(model, "model_fields"):
        return _of_pydantic(model)
    if dataclasses.is_dataclass(model):
        return {field.name for field in dataclasses.fields(model)}
    if hasattr(model, "__struct_fields__"):
        return set(model.__struct_fields__)
    if isinstance(model, type) and hasattr(model, "__total__"):
        return set(model.__annotations__)
    several = typing.get_args(model)
    if typing.get_origin(model) is typing.Annotated:
        several = several[:1]
    return set().union(*map(names_of, several))


def _of_pydantic(model: typing.Any) -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        found |= {name, *_aliases(field.alias), *_aliases(field.validation_alias)}
    for base in model.__mro__:
        if base.__module__.partition(".")[0] in {"sglang", "vllm"}:
            found |= set(_READ.findall(inspect.getsource(base)))
    return found


def _aliases(alias: typing.Any) -> list[str]:
    if alias is None:
        return []
    return (
        [alias]
        if isinstance(alias, str)
        else [one for one in alias.choices if isinstance(one, str)]
    )


def found_at(place: str) -> typing.Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    found = {
        path: sorted(set().union(*(names_of(found_at(place)) for place in places)))
        for path, places in asked.items()
    }
    print("\n" + json.dumps(found))  # noqa: T201
