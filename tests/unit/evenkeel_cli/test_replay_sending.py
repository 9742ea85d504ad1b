"""`evenkeel replay` and its endpoint: what is sent when, and what becomes of each way of answering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from evenkeel_cli.replay.run import Outcome, Replay
from evenkeel_cli.replay.sender import (
    Answer,
    Question,
    Sender,
    SenderError,
    open_session,
    served_model,
)
from evenkeel_simulator.traffic.workload import Call, Program

from tests.support.ports import free_ports
from tests.support.virtual_time import run_virtually

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
DELTA = 'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
ERROR = 'data: {"error":{"message":"full"}}\n\n'
DONE = "data: [DONE]\n\n"


@asynccontextmanager
async def sender(handler: Handler, **changes: Any) -> AsyncIterator[Sender]:
    """A sender to a server that answers like this. Its clock ticks with each reading."""
    made = web.Application()
    made.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(made)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ticks = iter(range(1000))
    given: dict[str, Any] = {
        "url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1",
        "model": "m",
        "now": lambda: float(next(ticks)),
        "headers_of": lambda client: {"Authorization": f"Bearer {client}"},
    }
    try:
        async with open_session() as session:
            yield Sender(session=session, **(given | changes))
    finally:
        await runner.cleanup()


def streamed(*pieces: str) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece.encode())
            await asyncio.sleep(0.02)
        return response

    return answer


QUESTION = Question(client="chat", prompt="hello", max_tokens=9)


@pytest.mark.parametrize("forced", [True, False])
async def test_a_request_asks_for_a_stream_of_its_length(forced: bool) -> None:
    seen: list[tuple[str, Any, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append((request.path, await request.json(), request.headers["Authorization"]))
        return await streamed(DELTA, USAGE, DONE)(request)

    async with sender(answer, force_length=forced) as to:
        found = await to.send(QUESTION)
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    expected = body | ({"ignore_eos": True} if forced else {})
    assert seen == [("/v1/chat/completions", expected, "Bearer chat")]
    assert found == Answer(
        sent_s=0.0, ended_s=2.0, first_token_s=1.0, input_tokens=7, cached_tokens=3, output_tokens=2
    )


@pytest.mark.parametrize(
    ("pieces", "first_token_s", "detail"),
    [
        ((DELTA,), 1.0, "the stream ended before its last event"),
        ((), None, "the stream ended before its last event"),
        ((DELTA, ERROR), 1.0, "full"),
        ((ERROR, DONE), 1.0, "full"),
    ],
)
async def test_a_stream_without_its_end_is_a_failure(
    pieces: tuple[str, ...], first_token_s: float | None, detail: str
) -> None:
    async with sender(streamed(*pieces)) as to:
        found = await to.send(QUESTION)
    assert (found.error, found.first_token_s) == ("stream", first_token_s)
    assert found.detail == detail
    assert found.output_tokens == 0


async def test_a_refusal_has_its_status_and_message() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "x" * 300}}, status=429)

    async with sender(answer) as to:
        found = await to.send(QUESTION)
    assert (found.error, found.detail, found.first_token_s) == ("429", "x" * 200, None)
    assert (found.sent_s, found.ended_s) == (0.0, 1.0)


async def test_no_connection_is_a_failure_with_its_cause() -> None:
    (port,) = free_ports(1)
    async with sender(streamed(), url=f"http://127.0.0.1:{port}/v1") as to:
        found = await to.send(QUESTION)
    assert found.error == "connection"
    assert found.detail.startswith(f"cannot connect to 127.0.0.1:{port}: ")


async def test_a_connection_that_breaks_keeps_the_time_of_the_first_token() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(DELTA.encode())
        assert request.transport is not None
        await asyncio.sleep(0.05)
        request.transport.abort()
        return response

    async with sender(answer) as to:
        found = await to.send(QUESTION)
    assert (found.error, found.first_token_s) == ("connection", 1.0)


@pytest.mark.parametrize(
    ("status", "body", "named", "words"),
    [
        (200, {"data": [{"id": 3}, {"id": "m1"}, {"id": "m2"}]}, False, "m1"),
        (200, {"data": []}, False, "lists no model; use --model"),
        (200, {"data": {}}, False, "lists no model; use --model"),
        (401, {"error": {"message": "no key"}}, False, "no key\nidentify the clients: use --api-keys"),
        (401, {"error": {"message": "no key"}}, True, "no key\ncheck that these are keys of the endpoint"),
        (503, {"error": {"message": "none"}}, True, "status 503: none"),
    ],
)  # fmt: skip
async def test_the_model_is_the_first_one_listed(
    status: int, body: Any, named: bool, words: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/v1/models"
        return web.json_response(body, status=status)

    headers = {"Authorization": "Bearer k"} if named else {}
    async with sender(answer) as to:
        try:
            found = await served_model(to.session, to.url, headers)
        except SenderError as error:
            assert words in str(error)
            assert ("\n" in str(error)) == (status == 401)
        else:
            assert found == words


async def test_an_endpoint_that_cannot_be_reached_is_named() -> None:
    (port,) = free_ports(1)
    async with open_session() as session:
        with pytest.raises(SenderError, match=f"^http://127.0.0.1:{port}/v1 cannot be reached"):
            await served_model(session, f"http://127.0.0.1:{port}/v1", {})


# When calls are sent.


def program(name: str, arrival_s: float, *after: tuple[int, ...]) -> Program:
    calls = tuple(
        Call(input_tokens=4, output_tokens=2, max_output_tokens=8, prompt=(), after=before)
        for before in after
    )
    return Program(id=name, client="c", arrival_s=arrival_s, calls=calls)


def sent(
    programs: list[Program], *, fails: bool = False, **changes: Any
) -> tuple[list[tuple[str, float, float]], list[int]]:
    """(program and number, due, sent) of each call by its sending, and how many ran then. A call takes 2 s."""
    outcomes: list[Outcome] = []
    running: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        def now() -> float:
            return loop.time() - began_s

        async def send(question: Question) -> Answer:
            running.append(replay.in_flight)
            assert (question.client, question.max_tokens) == ("c", 2)
            sent_s = now()
            await asyncio.sleep(2.0)
            error = "500" if fails else None
            return Answer(sent_s=sent_s, ended_s=now(), first_token_s=sent_s + 1, error=error)

        replay = Replay(send=send, now=now, on_outcome=outcomes.append, **changes)
        await replay.run(programs)
        assert replay.in_flight == 0
        assert replay.outcomes == outcomes

    run_virtually(main())
    rows = [(f"{one.program}.{one.number}", one.due_s, one.answer.sent_s) for one in outcomes]
    return sorted(rows, key=lambda row: (row[2], row[0])), running


@pytest.mark.parametrize("fails", [False, True])
def test_calls_are_sent_at_their_time_and_after_those_they_need(fails: bool) -> None:
    programs = [program("a", 0.0, (), (0,), (0,), (1, 2)), program("b", 1.5, ())]
    rows, running = sent(programs, fails=fails)
    assert rows == [
        ("a.0", 0.0, 0.0),
        ("b.0", 1.5, 1.5),
        ("a.1", 2.0, 2.0),
        ("a.2", 2.0, 2.0),
        ("a.3", 4.0, 4.0),
    ]
    assert running == [1, 2, 2, 3, 1]


def test_with_a_limit_calls_wait_and_their_time_stays() -> None:
    rows, running = sent([program(name, 0.0, ()) for name in "abc"], max_concurrency=1)
    assert rows == [("a.0", 0.0, 0.0), ("b.0", 0.0, 2.0), ("c.0", 0.0, 4.0)]
    assert running == [1, 1, 1]


def test_a_record_has_the_times_of_an_answer_and_none_of_a_failure() -> None:
    answer = Answer(
        sent_s=1.0, ended_s=4.0, first_token_s=2.0, input_tokens=9, cached_tokens=4, output_tokens=3
    )
    one = Outcome(program="p", number=2, client="c", due_s=0.5, answer=answer).record()
    assert (one.id, one.status, one.arrival_s, one.first_token_s, one.finished_s) == (
        "p.2", "finished", 1.0, 2.0, 4.0,
    )  # fmt: skip
    assert (one.input_tokens, one.cached_tokens, one.extend_tokens, one.output_tokens) == (
        9,
        4,
        5,
        3,
    )
    failed = Answer(sent_s=1.0, ended_s=4.0, first_token_s=2.0, error="500")
    record = Outcome(program="p", number=0, client="c", due_s=0.5, answer=failed).record()
    assert (record.status, record.first_token_s, record.finished_s) == ("failed", None, None)
    assert record.replica == -1
