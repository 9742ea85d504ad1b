"""A service that stands at zero: requests are held, somebody is told, and the first replica serves them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
from evenkeel_contract.adminstate import decode_activation
from evenkeel_contract.key import decode
from evenkeel_contract.routerconfig import AtZero, LimitsConfig, ReplicaConfig
from evenkeel_router.app import Router, running
from evenkeel_router.transport.upstream import Outgoing
from evenkeel_simulator.server.app import running_server

from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, headers_of, replicas
from tests.support.nasty import OK
from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    applied,
    config_for,
    replica_of,
    sha256,
    simulated,
    until,
)

BODY = {"model": MODEL, "prompt": "Ahoy", "max_tokens": 8, "ignore_eos": True}
QUEUE = LimitsConfig(queue_timeout_s=0.001)
"""Over before anything happens: who is held for longer is held by activationTimeout."""


@asynccontextmanager
async def at_zero(
    limits: LimitsConfig = QUEUE, mode: AtZero = AtZero.ACTIVATE
) -> AsyncIterator[tuple[Router, httpx.AsyncClient]]:
    """A router without replicas, that knows so."""
    async with (
        running(config_for(limits=limits, at_zero=mode), timing=QUICK) as router,
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client,
    ):
        await until(lambda: router.rooms.replicas.in_sync, "discovery")
        yield router, client


@asynccontextmanager
async def first_replica(router: Router) -> AsyncIterator[None]:
    """It starts, and is found."""
    async with running_server(simulated()) as server:
        router.services.only.discovery.update(
            replace(router.rooms.settings.config, replicas=(replica_of(server),))
        )
        yield


def ask(client: httpx.AsyncClient, **changes: object) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post("/v1/completions", json=BODY | changes))


async def wanted(router: Router, known: bool | None = None, **headers: str) -> bool:
    """What the admin port says, once it is not what is known."""
    url = f"http://127.0.0.1:{router.admin_port}/v1/activation"
    query = {} if known is None else {"wanted": str(known).lower()}
    async with httpx.AsyncClient(timeout=PATIENCE_S, headers=headers) as client:
        answer = await client.get(url, params=query)
    assert answer.status_code == 200, answer.text
    return decode_activation(answer.content).wanted


async def test_requests_are_held_reported_and_served_by_the_first_replica() -> None:
    async with at_zero() as (router, client):
        probes = f"http://127.0.0.1:{router.probe_port}"
        assert (await client.get(f"{probes}/readyz")).status_code == 200
        assert not await wanted(router)
        told = asyncio.create_task(wanted(router, False))
        plain, stream = ask(client), ask(client, stream=True)
        assert await told
        await until(lambda: len(router.rooms.replicas.wait_queue) == 2, "both to be held")
        metrics = (await client.get(f"{probes}/metrics")).text
        assert 'evenkeel_router_activation_wanted{model_name="llama"} 1.0' in metrics
        assert 'evenkeel_router_requests_held{model_name="llama"} 2.0' in metrics
        assert not plain.done()
        over = asyncio.create_task(wanted(router, True))
        async with first_replica(router):
            assert (await plain).json()["usage"]["completion_tokens"] == 8
            assert (await stream).text.endswith("data: [DONE]\n\n")
            assert not await over
            metrics = (await client.get(f"{probes}/metrics")).text
        assert 'evenkeel_router_activation_wanted{model_name="llama"} 0.0' in metrics
        assert 'evenkeel_router_activation_seconds_count{model_name="llama"} 1.0' in metrics


async def test_the_wait_for_the_first_replica_counts_for_no_other_limit() -> None:
    async with at_zero() as (router, client):
        held = ask(client, stream=True)
        await until(lambda: len(router.rooms.replicas.wait_queue) == 1, "it to be held")
        (request_state,) = router.rooms.intake.active_requests
        request_state.started_s -= 500  # as if it had been held for so long
        request_state.activation_s += 500
        async with first_replica(router):
            assert (await held).status_code == 200


async def test_a_request_waits_for_a_first_replica_once_the_broken_one_is_gone() -> None:
    limits = LimitsConfig(queue_timeout_s=3)
    async with at_zero(limits) as (router, client):
        async with first_replica(router):
            assert (await ask(client)).status_code == 200
        await until(lambda: not router.rooms.replicas.fleet.routable, "it to be lost")
        held = ask(client)
        await until(lambda: len(router.rooms.replicas.wait_queue) == 1, "the next one to wait")
        assert not await wanted(router), "it may come back"
        router.services.only.discovery.update(replace(router.rooms.settings.config, replicas=()))
        assert await wanted(router, False)
        (request_state,), now = router.rooms.intake.active_requests, asyncio.get_running_loop().time
        await until(
            lambda: now() > request_state.started_s + limits.queue_timeout_s + 0.5, "queueTimeout"
        )
        async with first_replica(router):
            assert (await held).status_code == 200


async def test_a_client_that_hangs_up_while_it_is_held_wants_nothing_any_more() -> None:
    async with at_zero() as (router, client):
        held = ask(client)
        assert await wanted(router, False)
        held.cancel()
        assert not await wanted(router, True)
        await until(lambda: not router.rooms.intake.active_requests, "the request to be over")
        totals = next(router.rooms.totals.clients())
        assert [outcome.value for outcome in totals.errors] == ["client_gone"]
        assert not router.rooms.intake.admission.running


async def test_a_request_held_in_vain_gets_the_reason_and_retry_after() -> None:
    limits = LimitsConfig(queue_timeout_s=0.001, activation_timeout_s=0.1)
    async with at_zero(limits) as (router, client):
        answer = await ask(client)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        error = answer.json()["error"]
        assert error["code"] == "no_replica"
        assert error["message"] == (
            "The service was at zero replicas, and none was ready within 0.1 s: the service has no replicas."
        )
        assert not router.rooms.replicas.activation.wanted


async def test_a_service_that_was_scaled_to_zero_by_hand_says_so_at_once() -> None:
    async with at_zero(LimitsConfig(), AtZero.REFUSE) as (router, client):
        answer = await ask(client)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert answer.json()["error"]["code"] == "scaled_to_zero"
        applied(router.rooms, replace(router.rooms.settings.config, at_zero=AtZero.WAIT))
        held = ask(client)
        async with first_replica(router):
            assert (await held).status_code == 200


async def test_two_clients_leave_the_waiting_room_in_turns() -> None:
    def answer(replica: ReplicaConfig, request: Outgoing) -> FakeReply:
        return FakeReply([OK])

    upstream = FakeUpstream(answer)
    config = config_for(limits=QUEUE, at_zero=AtZero.ACTIVATE)
    async with (
        running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router,
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client,
    ):
        answers = []
        for key in (KEY, KEY, KEY, None):  # the one who comes last has asked for least
            client.headers = httpx.Headers({"Authorization": f"Bearer {key}"} if key else {})
            answers.append(ask(client))
            held = len(answers)
            await until(
                lambda: len(router.rooms.replicas.wait_queue) == held,  # noqa: B023 - awaited here
                "one more to be held",
            )
        router.services.only.discovery.update(replace(config, replicas=replicas(1)))
        for one in answers:
            assert (await one).status_code == 200
    keys = [decode(headers_of(request)["x-smg-routing-key"]) for _, request in upstream.asked]
    assert [key.client for key in keys] == ["chat", "anonymous", "chat", "chat"]


async def test_activation_needs_the_token_and_a_known_path() -> None:
    async with at_zero() as (router, client):
        url = f"http://127.0.0.1:{router.admin_port}/v1/activation"
        answer = await client.get(url, params={"wanted": "maybe"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "wanted"
        router.rooms.settings.config = replace(
            router.rooms.settings.config, admin_token_sha256=sha256("token")
        )
        assert (await client.get(url)).status_code == 401
        assert not await wanted(router, Authorization="Bearer token")


async def test_a_router_that_ends_closes_the_poll() -> None:
    async with at_zero() as (router, _):
        asked = asyncio.create_task(wanted(router, False))
        await until(lambda: router.rooms.replicas.activation.asked, "somebody to ask")
    assert not await asked
