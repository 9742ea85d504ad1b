"""Clients that leave, dawdle or send nonsense; control endpoints; draining. Nobody else may notice."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from evenkeel_simulator.server.app import ENGINE_TASK, RunningServer, running_server
from evenkeel_simulator.server.served import FinishType

from tests.support.replicas import DEADLINE_S, settings, until

ENDLESS: dict[str, Any] = {"prompt": "go on", "max_tokens": 9000, "ignore_eos": True}
SHORT: dict[str, Any] = {"prompt": "hello there", "max_tokens": 3, "ignore_eos": True}


@pytest.fixture(autouse=True)
def nothing_goes_wrong_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A traceback in the server's log is a failure, whatever its client was told."""
    yield
    wrong = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not wrong


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    # Slow enough for an endless request to outlive its test by far: 9000 tokens take minutes.
    async with running_server(settings(speed=1.0, kv_tokens=100_000)) as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        yield http


def is_idle(server: RunningServer) -> bool:
    loads = server.replica.engine.loads()
    return loads.running == loads.waiting == 0


async def connect(
    server: RunningServer, request: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send bytes on a connection of its own."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**27)
    writer.write(request)
    await writer.drain()
    return reader, writer


@asynccontextmanager
async def streaming(client: httpx.AsyncClient, **wish: Any) -> AsyncIterator[AsyncIterator[str]]:
    """A stream of an endless completion whose first event has come; the lines after it."""
    body = {**ENDLESS, "stream": True, **wish}
    async with client.stream("POST", "/v1/completions", json=body) as response:
        # Held to the end: an iterator that is dropped closes the connection.
        lines = response.aiter_lines()
        await anext(lines)
        yield lines


def post_bytes(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


# Clients that leave


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
async def test_a_client_that_leaves_a_stream_aborts_its_request(
    server: RunningServer, client: httpx.AsyncClient, path: str
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": ENDLESS,
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "go on"}],
            "max_tokens": 9000,
            "ignore_eos": True,
        },
        "/generate": {
            "text": "go on",
            "sampling_params": {"max_new_tokens": 9000, "ignore_eos": True},
        },
    }
    async with client.stream("POST", path, json={**bodies[path], "stream": True}) as response:
        async for line in response.aiter_lines():
            assert line.startswith("data: ")
            break
        assert not is_idle(server)
    await until(lambda: is_idle(server))
    text = (await client.get("/metrics")).text
    assert 'sglang:num_aborted_requests_total{engine_type="unified",model_name="sim"} 1.0' in text


async def test_a_client_that_leaves_before_its_answer_aborts_its_request(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    asking = asyncio.create_task(client.post("/v1/completions", json=ENDLESS))
    await until(lambda: not is_idle(server))
    asking.cancel()
    await until(lambda: is_idle(server))


async def test_a_client_that_leaves_while_queued_leaves_the_queue() -> None:
    async with (
        running_server(settings(speed=1.0, kv_tokens=400)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        wish = {**ENDLESS, "max_tokens": 350}
        first = asyncio.create_task(client.post("/v1/completions", json=wish))
        await until(lambda: server.replica.engine.loads().running == 1)
        second = asyncio.create_task(client.post("/v1/completions", json=wish))
        await until(lambda: server.replica.engine.loads().waiting == 1)
        second.cancel()
        await until(lambda: server.replica.engine.loads().waiting == 0)
        assert server.replica.engine.loads().running == 1
        first.cancel()
        await until(lambda: is_idle(server))


async def test_every_choice_of_a_request_that_is_left_ends(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    async with streaming(client, prompt=["a", "b"], n=3):
        await until(lambda: server.replica.engine.loads().running == 6)
    await until(lambda: is_idle(server))


@pytest.mark.parametrize(
    "policy", ["FCFS", "LPM", "HRRN", "VTC", "VTCPredict", "LCF", "DRR", "DLPM"]
)
async def test_a_crowd_that_comes_and_goes_leaves_nothing_behind(policy: str) -> None:
    rng = random.Random(7)
    crowded = settings(kv_tokens=600, replica_policy=policy, kv_events_port=0, speed=20.0)
    async with (
        running_server(crowded) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):

        async def visit(number: int) -> None:
            wish: dict[str, Any] = {
                "prompt": f"{number % 5} " + "the sea is red " * rng.randint(1, 20),
                "max_tokens": rng.randint(1, 300),
                "n": rng.randint(1, 2),
                "stream": True,
            }
            events = rng.choice([0, 3, 20, 10_000])  # after so many it goes away
            async with client.stream("POST", "/v1/completions", json=wish) as response:
                lines = response.aiter_lines()
                while events and await anext(lines, None) is not None:
                    events -= 1

        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(visit(number) for number in range(60)))
        await until(lambda: is_idle(server))
        engine = server.replica.engine
        assert not engine.has_work
        assert engine.memory.private == 0
        assert engine.memory.free == 600 - engine.memory.cache.tokens
        assert engine.memory.cache.evictable == engine.memory.cache.tokens
        assert all(totals.running == 0 for totals in engine.accounts.clients.values())
        assert (await client.post("/flush_cache")).status_code == 200
        assert engine.memory.free == 600


# Clients that dawdle


async def test_a_slow_reader_delays_no_other_and_misses_nothing() -> None:
    # `/generate` repeats the text so far: all events together are far larger than any socket's buffer.
    tokens = 4000
    body = {
        "text": "go on",
        "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True},
        "stream": True,
    }
    async with (
        running_server(settings(speed=500.0, kv_tokens=100_000)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        reader, writer = await connect(server, post_bytes("/generate", json.dumps(body).encode()))
        transport = writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        await until(lambda: not is_idle(server))
        assert (await client.post("/v1/completions", json=SHORT)).status_code == 200
        await until(lambda: is_idle(server))  # the engine is through, whether or not anybody reads
        assert (await client.post("/v1/completions", json=SHORT)).status_code == 200
        transport.resume_reading()
        async with asyncio.timeout(DEADLINE_S):
            received = await reader.readuntil(b"data: [DONE]")
        writer.close()
    events = [part for part in received.split(b"\n\n") if b"data: {" in part]
    assert len(events) < tokens
    last = json.loads(events[-1][events[-1].index(b"{") :])
    assert last["meta_info"]["completion_tokens"] == len(last["output_ids"]) == tokens


async def test_a_connection_that_breaks_in_the_body_does_no_harm(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    whole = post_bytes("/v1/completions", json.dumps(SHORT).encode())
    for part in (whole[:20], whole[:-5], b"GET"):
        _, writer = await connect(server, part)
        writer.close()
        await writer.wait_closed()
    assert (await client.post("/v1/completions", json=SHORT)).status_code == 200
    assert is_idle(server)


# Nonsense


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a": "\xff"}', b"[" * 50_000])
async def test_a_body_that_is_none_is_a_flat_error_of_the_schema(
    client: httpx.AsyncClient, path: str, body: bytes
) -> None:
    headers = {"content-type": "application/json"}
    response = await client.post(path, content=body, headers=headers)
    error = response.json()
    assert response.status_code == error["code"] == 400
    assert (error["object"], error["type"], error["param"]) == ("error", "Bad Request", None)
    assert "Traceback" not in error["message"]


async def test_another_content_type_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", content=b"{}", headers={"content-type": "x/y"})
    assert response.status_code == 400
    assert "Only 'application/json' is allowed" in response.json()["message"]


async def test_generate_refuses_in_its_own_words(client: httpx.AsyncClient) -> None:
    response = await client.post("/generate", json={})
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    response = await client.post("/generate", content=b"{")
    assert response.json()["type"] == "Bad Request"


async def test_a_stream_of_generate_that_cannot_be_is_an_event(client: httpx.AsyncClient) -> None:
    wish = {"text": "a", "sampling_params": {"max_new_tokens": 10**9}, "stream": True}
    response = await client.post("/generate", json=wish)
    assert response.status_code == 200
    error, done = [part for part in response.text.split("\n\n") if part]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 400
    assert done == "data: [DONE]"


async def test_too_many_tokens_are_refused_before_a_stream_begins(
    client: httpx.AsyncClient,
) -> None:
    for wish in ({**SHORT, "max_tokens": 10**9}, {**SHORT, "prompt": "a " * 200_000}):
        response = await client.post("/v1/completions", json={**wish, "stream": True})
        assert response.status_code == 400
        assert "context length" in response.json()["message"]


async def test_a_prompt_that_fills_the_pool_is_refused_in_sglangs_words() -> None:
    async with (
        running_server(settings(kv_tokens=100)) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        response = await client.post("/v1/completions", json={"prompt": [7] * 97, "max_tokens": 1})
        assert "exceeds the maximum allowed length (94 tokens)" in response.json()["message"]
        longest = {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True}
        answer = (await client.post("/v1/chat/completions", json=longest)).json()
        assert answer["usage"]["total_tokens"] == 98


async def test_a_body_over_the_limit_is_refused() -> None:
    async with (
        running_server(settings(max_body_bytes=1000)) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        response = await client.post("/v1/completions", json={"prompt": "a" * 2000})
        assert response.status_code == response.json()["code"] == 413
        bomb = gzip.compress(b"a" * 1_000_000)
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        response = await client.post("/generate", content=bomb, headers=headers)
        assert response.status_code == 413


async def test_a_broken_encoding_is_refused(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await client.post("/v1/completions", content=b"no gzip", headers=headers)
    assert response.status_code == 400
    assert "Traceback" not in response.text


async def test_unknown_paths_and_methods_are_answered_as_fastapi_does(
    client: httpx.AsyncClient,
) -> None:
    response = await client.get("/nothing")
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})
    response = await client.get("/v1/completions")
    assert (response.status_code, response.json()) == (405, {"detail": "Method Not Allowed"})


async def test_a_request_id_that_is_in_use_is_refused(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    async with streaming(client, rid="same"):
        few = {"sampling_params": {"max_new_tokens": 2}}
        again = await client.post("/v1/completions", json={**SHORT, "rid": "same"})
        assert again.status_code == 400
        batch = await client.post("/generate", json={"text": ["a", "b"], "rid": "same", **few})
        assert batch.status_code == 200  # its requests are same_0 and same_1
        assert server.replica.engine.loads().running == 1


# Keys


async def test_an_api_key_guards_all_but_probes_and_metrics() -> None:
    async with (
        running_server(settings(api_key="sésame")) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        shown: tuple[bytes, ...] = (b"", b"Bearer", b"Bearer wrong", b"Basic x", b"Bearer \xff")
        for header in shown:
            response = await client.get("/v1/models", headers={b"authorization": header})
            assert (response.status_code, response.json()) == (401, {"error": "Unauthorized"})
        right = {b"authorization": "bearer sésame".encode()}
        assert (await client.get("/v1/models", headers=right)).status_code == 200
        for path in ("/health", "/ready", "/metrics"):
            assert (await client.get(path)).status_code == 200


# Control


async def test_abort_request_ends_one_or_all(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    asked = [
        asyncio.create_task(client.post("/v1/completions", json={**ENDLESS, "rid": rid}))
        for rid in ("one", "two")
    ]
    await until(lambda: server.replica.engine.loads().running == 2)
    assert (await client.post("/abort_request", json={"rid": "nobody"})).status_code == 200
    assert (await client.post("/abort_request", json={"rid": "one"})).status_code == 200
    [choice] = (await asked[0]).json()["choices"]
    assert choice["finish_reason"] == "abort"
    assert server.replica.engine.loads().running == 1
    assert (await client.post("/abort_request", json={"abort_all": True})).status_code == 200
    assert (await asked[1]).json()["choices"][0]["finish_reason"] == "abort"
    assert (await client.post("/abort_request", content=b"{")).status_code == 400


async def test_an_aborted_stream_ends_as_a_stream(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    async with streaming(client, rid="one") as lines:
        await client.post("/abort_request", json={"rid": "one"})
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    last = json.loads(rest[-2].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == FinishType.ABORT.value


async def test_the_cache_is_not_flushed_while_requests_run(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    async with streaming(client):
        assert (await client.get("/flush_cache")).status_code == 400
    await until(lambda: is_idle(server))
    assert (await client.get("/flush_cache")).status_code == 200
    assert server.replica.engine.memory.cache.tokens == 0


async def test_pausing_in_place_freezes_and_continuing_goes_on(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    running = asyncio.create_task(client.post("/v1/completions", json={**SHORT, "max_tokens": 20}))
    await until(lambda: not is_idle(server))
    paused = await client.post("/pause_generation", json={"mode": "in_place"})
    assert paused.json()["status"] == "ok"
    assert (await client.get("/ready")).status_code == 503
    assert (await client.get("/health")).status_code == 200
    newcomer = asyncio.create_task(client.post("/v1/completions", json=SHORT))
    done, _ = await asyncio.wait([running, newcomer], timeout=0.2)
    assert not done
    assert server.replica.engine.loads().running == 1
    assert (await client.post("/continue_generation", json={})).status_code == 200
    assert (await running).json()["usage"]["completion_tokens"] == 20
    assert (await newcomer).status_code == 200
    assert (await client.get("/ready")).status_code == 200


async def test_pausing_ends_running_requests_by_default(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    running = asyncio.create_task(client.post("/v1/completions", json=ENDLESS))
    await until(lambda: not is_idle(server))
    assert (await client.post("/pause_generation")).status_code == 200
    assert (await running).json()["choices"][0]["finish_reason"] == "abort"
    assert (await client.post("/pause_generation", json={"mode": "x"})).status_code == 400


async def test_an_engine_that_dies_leaves_no_request_waiting(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    asking = asyncio.create_task(client.post("/v1/completions", json=ENDLESS))
    await until(lambda: not is_idle(server))
    [engine] = [task for task in asyncio.all_tasks() if task.get_name() == ENGINE_TASK]
    engine.cancel()
    assert (await asking).json()["choices"][0]["finish_reason"] == "abort"
    for path in ("/health", "/ready"):
        assert (await client.get(path)).status_code == 503
    for path, body in (("/v1/completions", SHORT), ("/generate", {"text": "a"})):
        response = await client.post(path, json=body)
        assert response.status_code == 503
        assert "the engine has stopped" in response.text


# Draining


async def test_a_draining_replica_is_not_ready_but_serves_until_nothing_is_left(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    drained = asyncio.create_task(server.replica.drained())
    async with streaming(client):
        server.replica.draining.set()
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 503
        assert (await client.post("/v1/completions", json=SHORT)).status_code == 200
        assert not drained.done()
    async with asyncio.timeout(DEADLINE_S):
        await drained


async def test_a_server_that_stops_cuts_its_streams_off() -> None:
    async with AsyncExitStack() as stack:
        async with running_server(settings(speed=1.0, kv_tokens=100_000)) as server:
            client = httpx.AsyncClient(base_url=server.url, timeout=30)
            await stack.enter_async_context(client)
            lines = await stack.enter_async_context(streaming(client))
        with pytest.raises(httpx.RemoteProtocolError):
            async for line in lines:
                assert line != "data: [DONE]"
