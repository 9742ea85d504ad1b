"""Who is charged for what: client keys in, reports per client out, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import zmq
import zmq.asyncio
from evenkeel_contract.key import UNKNOWN, ClientKey
from evenkeel_contract.names import CLIENT_KEY_FIELD, CLIENT_KEY_HEADER
from evenkeel_contract.reports import REPORT_VERSION, Report, ReportRequest, decode_report, encode
from evenkeel_contract.reportsport import SNAPSHOT_INTERVAL_S
from evenkeel_contract.simulatedprompt import encode as tokenize
from evenkeel_simulator.server.app import RunningServer, running_server
from evenkeel_simulator.server.served import ServedRequest

from tests.support.replicas import DEADLINE_S, settings, until

ALICE = ClientKey("ns", "team", "alice", tenant_weight=2, client_weight=3)
PROMPT = "Tell me about the sea and the old harbour, please, and take your time."


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running_server(settings(reports_port=0)) as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        yield http


@pytest.fixture
async def router(server: RunningServer) -> AsyncIterator[zmq.asyncio.Socket]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    assert server.reports is not None
    socket.connect(server.reports)
    yield socket
    context.destroy(linger=0)


async def ask(router: zmq.asyncio.Socket, *, incarnation: str = "", since: int = 0) -> Report:
    question = ReportRequest(version=REPORT_VERSION, incarnation=incarnation, since=since)
    async with asyncio.timeout(DEADLINE_S):
        await router.send(encode(question))
        return decode_report(await router.recv())


async def complete(client: httpx.AsyncClient, *keys: str, **body: Any) -> dict[str, Any]:
    response = await client.post(
        "/v1/completions",
        json={"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, **body},
        headers=[(CLIENT_KEY_HEADER, key) for key in keys],
    )
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_report_holds_what_each_client_was_served(
    client: httpx.AsyncClient, router: zmq.asyncio.Socket
) -> None:
    await complete(client, ALICE.encode())
    await complete(client, ALICE.encode())
    report = await ask(router)
    [alice] = report.clients
    size = len(tokenize(PROMPT))
    cached = size // 16 * 16
    assert alice.client == "ns/team/alice"
    assert (alice.requests, alice.output_tokens, alice.running, alice.waiting) == (2, 8, 0, 0)
    assert (alice.extend_tokens, alice.cached_tokens) == (2 * size - cached, cached)
    assert alice.service == alice.extend_tokens + 2 * alice.output_tokens
    assert alice.normalised == pytest.approx(alice.service / 3)
    assert alice.tenant_normalised == pytest.approx(alice.service / 2)


async def test_a_router_that_asks_again_hears_only_news(
    server: RunningServer, client: httpx.AsyncClient, router: zmq.asyncio.Socket
) -> None:
    bob = ClientKey("ns", "other", "bob")
    await complete(client, ALICE.encode())
    await complete(client, bob.encode())
    first = await ask(router)
    assert first.incarnation == server.incarnation
    assert len(first.clients) == 2
    await complete(client, bob.encode())
    await asyncio.sleep(SNAPSHOT_INTERVAL_S)  # a snapshot may be so old
    second = await ask(router, incarnation=first.incarnation, since=first.sequence)
    assert [report.client for report in second.clients] == ["ns/other/bob"]
    assert second.since == first.sequence
    complete_one = await ask(router, incarnation="gone", since=first.sequence)
    assert len(complete_one.clients) == 2


async def test_an_invalid_question_gets_no_answer_and_does_no_harm(
    server: RunningServer, client: httpx.AsyncClient, router: zmq.asyncio.Socket
) -> None:
    await complete(client, ALICE.encode())
    for junk in (b"", b"junk", encode(ReportRequest(version=99, incarnation="", since=0))):
        await router.send(junk)
    assert len((await ask(router)).clients) == 1
    assert not await router.poll(0)
    metrics = (await client.get("/metrics")).text
    assert 'report_request_refused_total{model_name="sim"} 3.0' in metrics


async def test_a_req_socket_may_ask_too(server: RunningServer) -> None:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.REQ)
    assert server.reports is not None
    socket.connect(server.reports)
    assert (await ask(socket)).clients == ()
    context.destroy(linger=0)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([], "missing"),
        (["nonsense"], "malformed"),
        ([ALICE.encode() + "x"], "malformed"),
        ([ALICE.encode(), ALICE.encode()], "repeated"),
    ],
)
async def test_an_unreadable_key_is_the_unknown_client_and_counted(
    client: httpx.AsyncClient, router: zmq.asyncio.Socket, keys: list[str], reason: str
) -> None:
    await complete(client, *keys)
    [unknown] = (await ask(router)).clients
    assert unknown.client == UNKNOWN.identity
    assert unknown.normalised == unknown.service
    metrics = (await client.get("/metrics")).text
    assert f'client_key_refused_total{{model_name="sim",reason="{reason}"}} 1.0' in metrics


async def test_each_endpoint_takes_the_key_where_sglang_does(
    client: httpx.AsyncClient, router: zmq.asyncio.Socket
) -> None:
    key, other = ALICE.encode(), ClientKey("ns", "team", "smuggler").encode()
    await complete(client, key, **{CLIENT_KEY_FIELD: other})
    params = {"max_new_tokens": 4}
    await client.post(
        "/generate",
        json={"text": "a", "sampling_params": params, CLIENT_KEY_FIELD: key},
        headers={CLIENT_KEY_HEADER: other},
    )
    [alice] = (await ask(router)).clients
    assert (alice.client, alice.requests) == (ALICE.identity, 2)


async def test_a_retry_that_the_fleet_caused_is_computed_and_not_charged(
    client: httpx.AsyncClient, router: zmq.asyncio.Socket
) -> None:
    key = ClientKey("ns", "team", "alice", retried_by_fleet=True)
    await complete(client, key.encode())
    [alice] = (await ask(router)).clients
    assert alice.extend_tokens == len(tokenize(PROMPT))
    assert alice.service == 2 * alice.output_tokens


async def test_weights_and_seed_reach_the_policy(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    key = ClientKey("ns", "team", "alice", tenant_weight=2, client_weight=3, seed=-500)
    wish = {"prompt": PROMPT, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    async with client.stream(
        "POST", "/v1/completions", json=wish, headers={CLIENT_KEY_HEADER: key.encode()}
    ):
        await until(lambda: list(server.replica.driver.unfinished()))
        [request] = server.replica.driver.unfinished()
        assert isinstance(request, ServedRequest)
        assert (request.tenant_weight, request.client_weight) == (2, 3)
        assert (request.seed, request.charge_input) == (-500, True)
        assert (request.client, request.tenant) == ("ns/team/alice", "ns/team")
