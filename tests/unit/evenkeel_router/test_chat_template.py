"""Chat templates run in a process of their own, with a bounded part of its time and memory."""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import psutil
import pytest
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.prefix import chat_template, template_worker
from evenkeel_router.prefix.chat_template import (
    LONGEST_S,
    TOO_LONG,
    TOO_MUCH,
    ChatTemplates,
    TemplateError,
)
from evenkeel_router.prefix.prompts import Chat, read
from evenkeel_router.prefix.template_worker import MEMORY_BYTES, SIZE_BYTES
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
ENDLESS = {
    "ranges within ranges": "{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "turns that do nothing": "{% for a in range(99999) %}{% for b in range(99999) if a < 0 %}"
    "{% endfor %}{% endfor %}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}"
    "{% endif %}{% endmacro %}{{ m(60) }}",
    "a loop that calls itself": "{% for a in [60] recursive %}{% if a %}{{ loop([a - 1]) }}"
    "{{ loop([a - 1]) }}{% endif %}{% endfor %}",
    "a block that is called": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% call m() %}{% endcall %}"
    "{% endfor %}{% endfor %}",
}


IN_ONE_EXPRESSION = {
    "a power": "{{ (9 ** n) % 10 }}",
    "a precision": "{{ 1.5|round(n, 'ceil') }}",
    # Lists of lists are compared in C, which looks for no signal: 2 to the power of 60 pairs.
    "a comparison": "{% set a = [1] %}{% set b = [1] %}"
    + "{% set a = [a, a] %}{% set b = [b, b] %}" * 60
    + "{{ a == b }}",
}
IMMENSE = {
    "a text times a number": "{{ 'x' * 1000000000 }}",
    "a list times a number that a request gives": "{{ ([1] * n)|length }}",
    "a sum": "{% set a = messages[0].content * 60 %}{{ (a + a)|length }}",
    "twice as much in each line": "{% set a = 'xxxxxxxx' %}" + "{% set a = a ~ a %}" * 60,
    "twice as much in each set block": "{% set a = 'xxxxxxxx' %}"
    + "{% set a %}{{ a }}{{ a }}{% endset %}" * 60,
    "a format": "{{ '%1000000000d' % 1 }}",
    "a width": "{{ 'x'.center(n) }}",
    "replacements": "{% set a = 'x' * 20000 %}{{ a.replace('x', a) }}",
    "filter: an indent": "{{ 'x'|indent(n, true) }}",
    "filter: JSON": "{{ [1]|tojson(indent=n) }}",
    "all that is written": "{% set a = 'x' * 1000000 %}{{ a }}{{ a }}{{ a }}{{ a }}{{ a }}",
}


USUAL = {
    "{{ '=' * 8 ~ 'a' + 'b' }}": "========ab",
    "{{ ['a', 'b']|join(', ') }}{{ '-'.join(['c', 'd']) }}": "a, bc-d",
    "{{ messages|map(attribute='role')|join('|') }}": "user",
    "{{ [{'k': 1}, {'k': 2}]|join('-', attribute='k') }}": "1-2",
    "{{ '%s is %d' % ('x', 3) }} {{ '{} {:>4}'.format('y', 5) }}": "x is 3 y    5",
    "{{ 'a b'.replace(' ', '_') }}{{ 'c d'|replace(' ', '') }}": "a_bcd",
    "{{ 'a\nb'|indent(2) }}": "a\n  b",
    "{{ 'x'.ljust(3) }}{{ 'x'|center(3) }}{{ '7'.zfill(2) }}|": "x   x 07|",
    "{{ 7 % 4 }}{{ 2 ** 10 }}{{ 3 * 4 }}{{ 1 + 2 }}{{ 1.5 * 2 }}": "31024123" + "3.0",
    "{{ [1] + [2] }}{{ {'a': [1, 2]}|tojson(indent=2)|length }}": "[1, 2]29",
    "{{ 2.345|round(1) }}{{ [1, 2, 3]|batch(2)|list }}": "2.3[[1, 2], [3]]",
    "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') ~ m('b') }}": "<a><b>",
}


def chat(messages: list[dict[str, Any]] = HI, **fields: Any) -> Chat:
    found = read(Endpoint.CHAT, msgspec.json.encode({"messages": messages, **fields}))
    assert isinstance(found, Chat)
    return found


@asynccontextmanager
async def templates(sources: Mapping[str, str], **special: str) -> AsyncIterator[ChatTemplates]:
    made = ChatTemplates(sources, special)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


async def refused(made: ChatTemplates, name: str, asked: Chat) -> str:
    with pytest.raises(UntokenisedError) as caught:
        await made.render(name, asked)
    assert caught.value.reason is Reason.TEMPLATE
    return caught.value.detail


def workers() -> list[psutil.Process]:
    return [
        one for one in psutil.Process().children() if "template_worker" in " ".join(one.cmdline())
    ]


async def test_templates_render_as_transformers_renders_them() -> None:
    async with templates({want: source for source, want in USUAL.items()}) as made:
        for source, want in USUAL.items():
            assert await made.render(want, chat()) == want, source


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
async def test_a_template_without_an_end_is_given_up(tools: list[dict[str, Any]] | None) -> None:
    async with templates(ENDLESS | {"usual": "{{ messages[0].content }}"}) as made:
        process = workers()
        for name in ENDLESS:
            assert await refused(made, name, chat(tools=tools)) == TOO_LONG, name
        assert await made.render("usual", chat()) == "hi"
        assert workers() == process  # loops end by themselves; the process goes on


async def test_an_expression_without_an_end_is_given_up() -> None:
    asked = chat(chat_template_kwargs={"n": 10**9})
    async with templates(IN_ONE_EXPRESSION | {"usual": "{{ messages[0].content }}"}) as made:
        for name in IN_ONE_EXPRESSION:
            assert await refused(made, name, asked) == TOO_LONG, name
            assert await made.render("usual", chat()) == "hi"


async def test_a_template_gets_no_more_memory_than_the_limit() -> None:
    asked = chat([{"role": "user", "content": "x" * 2_000_000}], chat_template_kwargs={"n": 10**9})
    async with templates(IMMENSE | {"usual": "{{ messages[0].content }}"}) as made:
        assert await made.render("usual", chat()) == "hi"
        (process,) = workers()
        start_bytes = process.memory_info().vms
        for name in IMMENSE:
            assert await refused(made, name, asked) == TOO_MUCH, name
            assert all(one.memory_info().vms <= start_bytes + MEMORY_BYTES for one in workers())
        assert await made.render("usual", chat()) == "hi"


async def test_the_time_grows_with_the_request_up_to_an_end() -> None:
    count = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    async with templates({"count": count}) as made:
        used_s = []
        for size in (1, 100_000, 1_900_000):
            (process,) = workers()
            before_s = process.cpu_times().user
            await refused(made, "count", chat([{"role": "user", "content": "x" * size}]))
            used_s.append(process.cpu_times().user - before_s)
    # CPU time, in steps of 10 ms: another load of the machine changes nothing.
    assert used_s[0] < used_s[1] < used_s[2] <= LONGEST_S + 0.05


async def test_no_request_can_give_itself_more() -> None:
    options = {"chat_template_kwargs": {"allowed_s": 1e9, "name": "usual"}}
    async with templates(ENDLESS) as made:
        assert await refused(made, "ranges within ranges", chat(**options)) == TOO_LONG


async def test_loops_macros_and_calls_render_whole() -> None:
    source = (
        "{% macro say(m) %}<{{ m.role }}>{{ caller() }}{% endmacro %}"
        "{% for m in messages if m.role != 'system' %}{% call say(m) %}{{ m.content }}{% endcall %}"
        "{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last else ',' }}{% else %}nobody{% endfor %}"
        "{% for a in [[1, [2]]] recursive %}({{ loop(a[1:]) if a is iterable else a }}){% endfor %}"
    )
    messages = [{"role": "system", "content": "s"}, *HI, {"role": "user", "content": "ho"}]
    async with templates({"default": source}) as made:
        assert await made.render("default", chat(messages)) == "<user>hi1/2,<user>ho2/2.(())"
        assert (await made.render("default", chat(messages[:1]))).startswith("nobody")


async def test_a_client_that_leaves_takes_no_answer_of_another() -> None:
    """The exchange with the process goes on to its end: the next conversation would read its answer."""
    async with templates(ENDLESS | {"usual": "{{ messages[0].content }}"}) as made:
        process = workers()
        leaving = asyncio.create_task(made.render("ranges within ranges", chat()))
        while not made._turn.locked():  # noqa: ASYNC110 (nothing could set an event)
            await asyncio.sleep(0)
        for _ in range(5):  # until the frame is sent
            await asyncio.sleep(0)
        leaving.cancel()
        assert await made.render("usual", chat([{"role": "user", "content": "ho"}])) == "ho"
        assert await made.render("usual", chat()) == "hi"
        assert workers() == process


async def test_a_killed_process_is_replaced() -> None:
    async with templates({"default": "{{ messages[0].content }}"}) as made:
        (process,) = workers()
        process.kill()
        process.wait()
        assert await refused(made, "default", chat()) == TOO_LONG
        assert await made.render("default", chat()) == "hi"


async def test_a_conversation_does_not_wait_long_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_template, "BUSY_S", 0.0)
    async with templates(ENDLESS | {"usual": "{{ messages[0].content }}"}) as made:
        first = asyncio.create_task(made.render("ranges within ranges", chat()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(UntokenisedError) as caught:
            await made.render("usual", chat())
        assert caught.value.reason is Reason.BUSY
        with pytest.raises(UntokenisedError):
            await first


async def test_closed_templates_start_no_process_for_those_that_wait() -> None:
    async with templates(ENDLESS | {"usual": "{{ messages[0].content }}"}) as made:
        running = asyncio.create_task(made.render("ranges within ranges", chat()))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(made.render("usual", chat()))
        await asyncio.sleep(0)
        await made.close()
        for one in (running, waiting):
            with pytest.raises(UntokenisedError) as caught:
                await one
            assert caught.value.reason is Reason.TEMPLATE
        assert workers() == []


async def test_a_start_that_is_cancelled_leaves_no_process() -> None:
    made = ChatTemplates({"default": "hi"}, {})
    starting = asyncio.create_task(made.start())
    while not workers():  # noqa: ASYNC110 (nothing could set an event)
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert workers() == []


async def test_a_machine_without_room_for_a_process_is_no_fault_of_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with templates({"default": "{{ messages[0].content }}"}) as made:
        (process,) = workers()
        process.kill()
        process.wait()
        await refused(made, "default", chat())
        monkeypatch.setattr(chat_template.sys, "executable", "/no/such/program")
        assert "no process can be started" in await refused(made, "default", chat())
        monkeypatch.undo()
        assert await made.render("default", chat()) == "hi"


async def test_a_conversation_that_nests_too_deeply_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(900):
        nested = [nested]
    async with templates({"default": "{{ messages[0].content }}"}) as made:
        process = workers()
        await refused(made, "default", chat(chat_template_kwargs={"n": nested}))
        assert await made.render("default", chat()) == "hi"
        assert workers() == process


@contextmanager
def program(sources: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The program of the process, with its templates."""
    command = [sys.executable, "-I", template_worker.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            send(process, (sources, {}))
            yield process
        finally:
            process.kill()


def send(process: subprocess.Popen[bytes], content: object) -> None:
    assert process.stdin is not None
    frame = pickle.dumps(content)
    process.stdin.write(len(frame).to_bytes(SIZE_BYTES) + frame)
    process.stdin.flush()


def test_the_process_ends_with_the_router_however_that_ends() -> None:
    with program({"default": "hi"}) as process:
        assert process.stdin is not None
        process.stdin.close()  # as the kernel does for a router that was killed
        assert process.wait(30) == 0


def test_the_kernel_ends_what_python_cannot_stop() -> None:
    with program(IN_ONE_EXPRESSION) as process:
        send(process, ("a comparison", {"tools": None}, LONGEST_S))
        assert process.wait(20) == -signal.SIGPROF


def test_ctrl_c_in_a_terminal_does_not_end_the_process() -> None:
    with program({"default": "hi"}) as process:
        assert process.stdout is not None
        assert process.stdout.read(SIZE_BYTES)  # the templates are compiled
        process.send_signal(signal.SIGINT)
        send(process, ("default", {"tools": None}, LONGEST_S))
        assert process.stdout.read(3 + SIZE_BYTES + 3)[-2:] == b"hi"


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'x' ", "{{ 9 ** (9 ** 9) }}"])
async def test_a_template_that_is_none_is_refused(source: str) -> None:
    made = ChatTemplates({"default": source}, {})
    with pytest.raises(TemplateError):
        await made.start()
    assert workers() == []


async def test_the_process_ends_with_its_templates() -> None:
    async with templates({"default": "hi"}):
        assert len(workers()) == 1
    assert workers() == []
