"""A verb of `evenkeel`, and verbs whose options are the fields of a dataclass, so that no function has thirty parameters."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple, TypeVar, get_type_hints

_Options = TypeVar("_Options")


class Command(NamedTuple):
    """A verb: where its function is, which has the verb's name, and what the help says of it."""

    module: str
    help: str
    """First line of the verb's help."""
    after: str = ""
    """Name of the verb after which the help lists this one. Without a known name it comes last."""


def command_of(run: Callable[[_Options], None], options: type[_Options]) -> Callable[..., None]:
    """`run` as typer reads a command: with one parameter for each field of the dataclass `options`."""

    def command(**given: Any) -> None:
        run(options(**given))

    types = get_type_hints(options, include_extras=True)
    fields = signature(options).parameters.values()
    parameters = [field.replace(annotation=types[field.name]) for field in fields]
    command.__signature__ = signature(options).replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = types
    command.__doc__ = run.__doc__
    return command
