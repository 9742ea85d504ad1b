"""A process of its own that renders a model's chat templates, with bounds on CPU time and memory.

`chat_template` starts this file as a program. A frame is a size in four bytes, then the data. The first one has the
templates and the special tokens, each further one a conversation; each gets one answer. Frames of the router are pickled.
An answer is a status and a text, so a template that breaks out of jinja2's sandbox can send the router nothing else.

The environment is that of transformers 5.19 (`utils/chat_template_utils.py`): trimmed blocks, `tojson` that escapes
nothing, `raise_exception`, `strftime_now`, loop controls, and `{% generation %}`, which marks text and changes none.
Whether a template takes content as parts or as text is guessed from its source, by the same rules as SGLang's.
"""

from __future__ import annotations

import json
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, BinaryIO, Final

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

DONE, INVALID, TOO_LONG, TOO_MUCH = b"d", b"i", b"l", b"m"
"""The status of an answer: a text; the template or its input is invalid; it takes too long; it makes too much."""
SIZE_BYTES: Final = 4
MOST: Final = 4 * 1024 * 1024
"""Characters of a text: twice the longest prompt that is tokenised."""
MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Address space beyond that of the start: room for several copies of the longest conversation and its text."""
COMPILE_S: Final = 2.0
"""CPU time for all templates of a model; those of large models take 20 ms."""
HARD_S: Final = 0.1
"""CPU time beyond the limit after which the kernel ends the process: inside one expression, Python sees no limit."""
_MEDIA_WORDS: Final = ("image", "audio", "video", "vision")
_MESSAGE_NAMES: Final = ("message", "msg", "m")


class _TooLongError(BaseException):
    """The CPU time is used up. Not an `Exception`, which jinja2's filters may catch."""


class _TooMuchError(Exception):
    """The text is longer than a prompt may be."""


def main() -> None:
    """Answer frames until standard input ends, or memory was short: then the heap has holes, and the router starts anew."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C in a terminal ends the router, which closes the pipe
    signal.signal(signal.SIGVTALRM, _time_is_up)
    _limit_memory()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sources, special_tokens = pickle.loads(_read(source) or sys.exit())
    templates: dict[str, Template] = {}
    _answer(sink, COMPILE_S, lambda: compile_into(sources, templates))
    while frame := _read(source):
        name, variables, allowed_s = pickle.loads(frame)
        given = special_tokens | variables
        status = _answer(sink, allowed_s, lambda: _rendered(templates[name], given))  # noqa: B023
        if status == TOO_MUCH:
            return


def _answer(sink: BinaryIO, allowed_s: float, work: Callable[[], str]) -> bytes:
    """Send what `work` makes within so much CPU time; returns the status."""
    signal.setitimer(signal.ITIMER_PROF, allowed_s + HARD_S)  # ends the process: no handler is set
    try:
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, allowed_s)
            status, text = DONE, work()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _TooLongError:
        status, text = TOO_LONG, ""
    except (MemoryError, _TooMuchError):
        status, text = TOO_MUCH, ""
    except Exception as error:  # noqa: BLE001 (whatever a template does, as SGLang has it)
        status, text = INVALID, str(error)[:1000]
    signal.setitimer(signal.ITIMER_PROF, 0)
    data = status + text.encode(errors="surrogatepass")
    sink.write(len(data).to_bytes(SIZE_BYTES) + data)
    sink.flush()
    return status


def _read(source: BinaryIO) -> bytes:
    """The next frame; empty at the end."""
    return source.read(int.from_bytes(source.read(SIZE_BYTES)))


def _time_is_up(*_: object) -> None:
    raise _TooLongError


def _limit_memory() -> None:
    with open("/proc/self/statm") as pages:
        used_bytes = int(pages.read().split()[0]) * resource.getpagesize()
    limit_bytes = used_bytes + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def compile_into(sources: Mapping[str, str], into: dict[str, Template]) -> str:
    """Names of the templates that take content as parts, as JSON."""
    environment = _environment()
    into |= {name: environment.from_string(source) for name, source in sources.items()}
    return json.dumps([name for name in sources if _iterates_parts(sources[name], environment)])


def _rendered(template: Template, variables: Mapping[str, Any]) -> str:
    tools = variables["tools"]
    try:
        return _bounded(template.render(variables))
    except (MemoryError, _TooMuchError):
        raise
    except Exception:
        if not tools:
            raise
    # Some want the functions alone.
    functions = [tool["function"] for tool in tools]
    return _bounded(template.render({**variables, "tools": functions}))


def _bounded(text: str) -> str:
    if len(text) > MOST:
        raise _TooMuchError
    return text


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: its body, as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(
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
    return datetime.now().strftime(form)


def _iterates_parts(source: str, environment: Environment) -> bool:
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


if __name__ == "__main__":
    main()
