"""A model's chat template, compiled as transformers compiles it, in a sandbox.

The environment is that of transformers 5.19 (`utils/chat_template_utils.py`): trimmed blocks, `tojson` that escapes
nothing, `raise_exception`, `strftime_now`, loop controls, and `{% generation %}`, which marks text and changes none.
Whether a template takes content as parts or as text is guessed from its source, by the same rules as SGLang's.

The compiled program differs from the source: each turn of a loop and each macro first checks how much of the thread's
time the rendering has used. A sandbox bounds a range but not ranges within ranges, so a small request could otherwise use any
amount of time. `template_sandbox` bounds what a single expression may produce.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from evenkeel_router.prefix.prompts import Chat, for_template
from evenkeel_router.prefix.template_sandbox import BoundedSandbox, TooMuchError
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError

_MEDIA_WORDS: Final = ("image", "audio", "video", "vision")
_MESSAGE_NAMES: Final = ("message", "msg", "m")
SMALL_S: Final = 0.005
"""CPU time that any conversation may take; a usual one takes a tenth of it."""
PER_BYTE_S: Final = 2e-6
"""CPU time that it may take more for each byte. A megabyte of text is rendered in a few milliseconds."""
LONGEST_S: Final = 0.5
"""CPU time that no conversation may exceed: the time in which the longest prompt is tokenised."""
TOO_LONG: Final = "the chat template takes too long"
TOO_MUCH: Final = "the chat template makes too much text"
_MOST_INDENT: Final = 64
_CHECK: Final = "evenkeel_check"


class _TooLongError(Exception):
    """A rendering took longer than it may."""


@dataclass(frozen=True, slots=True)
class _Allowance:
    """Until when a rendering may run, by the clock of its thread."""

    clock: Callable[[], float]
    ends_s: float

    def check(self) -> bool:
        """True, so that it may stand in a condition. Raises `_TooLongError`."""
        if self.clock() > self.ends_s:
            raise _TooLongError
        return True


class ChatTemplate:
    """One template. Rendering is pure, but for `strftime_now` and for when it is given up."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """Raises `TemplateError` where the source is no template. `clock`: CPU time of the calling thread."""
        environment = _environment()
        self._template = environment.from_string(_checked(source, environment))
        self._clock = clock
        self._special_tokens = dict(special_tokens)
        self._keeps_parts = _iterates_parts(source, environment)

    def render(self, chat: Chat) -> str:
        """The prompt's text, without what `answer_begins`. Raises `UntokenisedError`."""
        messages = for_template(chat, keeps_parts=self._keeps_parts)
        may_take_s = min(LONGEST_S, SMALL_S + PER_BYTE_S * chat.size_bytes)
        allowance = _Allowance(self._clock, self._clock() + may_take_s)
        try:
            try:
                return self._render(chat, messages, chat.tools, allowance)
            except (_TooLongError, TooMuchError):
                raise
            except Exception:  # whatever a template does, as SGLang has it
                if not chat.tools:
                    raise
            # Some want the functions alone.
            functions = [tool["function"] for tool in chat.tools]
            return self._render(chat, messages, functions, allowance)
        except _TooLongError as error:
            raise UntokenisedError(Reason.TEMPLATE, TOO_LONG) from error
        except TooMuchError as error:
            raise UntokenisedError(Reason.TEMPLATE, TOO_MUCH) from error
        except Exception as error:
            raise UntokenisedError(Reason.TEMPLATE) from error

    def _render(
        self,
        chat: Chat,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        allowance: _Allowance,
    ) -> str:
        return self._template.render(
            {
                "messages": messages,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": True,
            }
            | self._special_tokens
            | chat.options
            | {_CHECK: allowance.check}
        )


def _checked(source: str, environment: BoundedSandbox) -> nodes.Template:
    """The template with a look at the allowance in each turn of its loops and in each macro."""
    template = environment.bounded(environment.parse(source))
    for node in list(template.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        check = nodes.Call(nodes.Name(_CHECK, "load"), [], [], None, None)
        check.set_lineno(node.lineno).set_environment(environment)
        if isinstance(node, nodes.For) and node.test is not None:
            node.test = nodes.And(check, node.test).set_lineno(node.lineno)  # body or not
        elif isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
            node.body.insert(0, nodes.ExprStmt(check).set_lineno(node.lineno))
    return template


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: its body, as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> BoundedSandbox:
    environment = BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    if indent is not None and not isinstance(indent, str) and indent > _MOST_INDENT:
        raise TooMuchError
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005, TID251 - as in transformers


def _iterates_parts(source: str, environment: BoundedSandbox) -> bool:
    """Whether the template goes through a message's content part by part, or speaks of media."""
    if any(word in source for word in _MEDIA_WORDS):
        return True
    loops = environment.parse(source).find_all(nodes.For)
    return any(_is_content(loop.iter) for loop in loops)


def _is_content(node: nodes.Node | None) -> bool:
    if isinstance(node, (nodes.Filter, nodes.Test)):
        return _is_content(node.node)
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Slice):
            return _is_content(node.node)
        named = isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    elif isinstance(node, nodes.Getattr):
        named = node.attr == "content"
    else:
        return False
    return named and isinstance(node.node, nodes.Name) and node.node.name in _MESSAGE_NAMES
