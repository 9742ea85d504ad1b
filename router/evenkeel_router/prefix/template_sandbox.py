"""A sandbox for chat templates in which no single expression produces more text than a prompt may have.

jinja2's own sandbox bounds ranges. This one checks every other construct that makes much out of little before it runs:
operators, methods of texts, filters, and output. `chat_template` bounds the time. jinja2 does not pass `~` to a sandbox,
so the parsed template gets a filter in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final

from jinja2 import nodes, pass_eval_context
from jinja2.filters import make_attrgetter
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST: Final = 4 * 1024 * 1024
"""Characters of a text, or members of a list. Twice the longest prompt that is tokenised."""
_MOST_BITS: Final = 8192
"""Of a number."""
_MOST_NUMBER: Final = 10_000
"""Where a number says how often something is done."""
_CONCAT: Final = "evenkeel_concat"
_SEQUENCES: Final = (str, bytes, list, tuple)
_WIDE: Final = re.compile(r"\d{5}|%[^a-zA-Z%]*\*|:[^{}]*\{")
"""In a format: a width of five digits, or one that is an argument."""


class TooMuchError(Exception):
    """An expression would make too much."""


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with bounds; raises `TooMuchError` while a template is rendered."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.filters |= {name: _sized(self.filters[name], size) for name, size in _FILTERS.items()}
        self.filters |= {"join": _joined, _CONCAT: lambda *parts: joined(map(str, parts))}
        del self.globals["lipsum"]  # it makes text of any length

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """All that a template, a macro or a block writes."""
        return joined(pieces)

    def bounded(self, template: nodes.Template) -> nodes.Template:
        """A parsed template, with its `~` looked at too."""
        return _Concats(self).visit(template)  # type: ignore[no-any-return]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _must_fit(_size_of_operation(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        text = getattr(obj, "__self__", None)
        if isinstance(text, (str, bytes)):
            name = getattr(obj, "__name__", "")
            if name == "join" and isinstance(text, str):
                return joined(map(str, args[0]), text)
            if size := _METHODS.get(name):
                _must_fit(size(text, *args, **kwargs))
        return super().call(context, obj, *args, **kwargs)


def joined(pieces: Iterable[str], separator: str = "") -> str:
    """`separator.join(pieces)`. Raises `TooMuchError`."""
    kept, size = [], 0
    for piece in pieces:
        size += len(piece) + len(separator)
        _must_fit(size)
        kept.append(piece)
    return separator.join(kept)


def _must_fit(size: float) -> None:
    if size > MOST:
        raise TooMuchError


class _Concats(NodeTransformer):
    def __init__(self, environment: BoundedSandbox) -> None:
        self._environment = environment

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        first, *rest = node.nodes
        filtered = nodes.Filter(first, _CONCAT, rest, [], None, None)
        return filtered.set_lineno(node.lineno).set_environment(self._environment)


def _size_of_operation(operator: str, left: Any, right: Any) -> float:
    if operator == "%":
        return _size_of_format(left, right) if isinstance(left, (str, bytes)) else 0
    if operator == "+":
        both = isinstance(left, _SEQUENCES) and isinstance(right, _SEQUENCES)
        return len(left) + len(right) if both else 0
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        bits = bits * right if operator == "**" else bits + right.bit_length()
        return MOST + 1 if bits > _MOST_BITS else 0
    if isinstance(right, _SEQUENCES):
        left, right = right, left
    if isinstance(left, _SEQUENCES) and isinstance(right, int):
        return len(left) * right
    return 0


def _size_of_format(form: str | bytes, *args: Any, **kwargs: Any) -> float:
    text = form if isinstance(form, str) else form.decode("latin-1")
    if _WIDE.search(text):
        return MOST + 1
    given = [*args, *kwargs.values()]
    for one in list(given):
        if isinstance(one, (tuple, list)):
            given += one
        elif isinstance(one, dict):
            given += one.values()
    longest = max((len(one) for one in given if isinstance(one, _SEQUENCES)), default=0)
    fields = text.count("{") + text.count("%")
    return len(text) + fields * longest


def _size_at_width(text: Any, width: int = 80, *_: Any) -> float:
    return max(len(text), width)


def _size_of_tabs(text: Any, tabsize: int = 8) -> float:
    return len(text) + len(text) * max(0, tabsize)


def _size_of_replacement(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> float:
    places: int = text.count(old)
    return len(text) + places * len(new)


def _size_of_translation(text: Any, table: Any) -> float:
    values = table.values() if isinstance(table, dict) else table
    longest = max((len(one) for one in values if isinstance(one, str)), default=1)
    return len(text) * max(1, longest)


def _size_of_indent(text: Any, width: int | str = 4, *_: Any, **__: Any) -> float:
    each = len(width) if isinstance(width, str) else width
    return len(text) + (str(text).count("\n") + 1) * each


def _size_of_wrapping(
    _: Any, text: Any, *args: Any, wrapstring: str | None = None, **__: Any
) -> float:
    longest = max([len(one) for one in (*args, wrapstring) if isinstance(one, str)], default=1)
    return len(text) * max(1, longest)


def _size_of_often(_: Any, often: Any = 0, *__: Any, **___: Any) -> float:
    return MOST + 1 if isinstance(often, int) and often > _MOST_NUMBER else 0


_METHODS: Final[dict[str, Callable[..., float]]] = {
    "center": _size_at_width,
    "ljust": _size_at_width,
    "rjust": _size_at_width,
    "zfill": _size_at_width,
    "expandtabs": _size_of_tabs,
    "replace": _size_of_replacement,
    "translate": _size_of_translation,
    "format": _size_of_format,
    "format_map": _size_of_format,
}
_FILTERS: Final[dict[str, Callable[..., float]]] = {
    "center": _size_at_width,
    "indent": _size_of_indent,
    "replace": lambda _, text, old, new, *rest, **named: _size_of_replacement(
        str(text), str(old), str(new)
    ),
    "format": lambda text, *args, **named: _size_of_format(str(text), *args, **named),
    "wordwrap": _size_of_wrapping,
    "batch": _size_of_often,
    "slice": lambda _, *args, **named: _size_of_often(*args, **named),
    "round": _size_of_often,
}


def _sized(function: Callable[..., Any], size: Callable[..., float]) -> Callable[..., Any]:
    @wraps(function)  # with what jinja2 has noted on it
    def checked(*args: Any, **kwargs: Any) -> Any:
        _must_fit(size(*args, **kwargs))
        return function(*args, **kwargs)

    return checked


@pass_eval_context
def _joined(
    eval_context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(eval_context.environment, attribute), value)
    return joined(map(str, value), str(d))
