"""Router and simulated replicas over real sockets: the way of a request, from a client's end."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import httpx
from evenkeel_contract.adminstate import decode_replicas, decode_state
from evenkeel_contract.key import decode
from evenkeel_contract.routerconfig import SchedulingConfig
from evenkeel_fairshare.ledger.replica_rows import REQUESTS
from evenkeel_router.api import identity
from evenkeel_router.app import Router
from evenkeel_simulator.server.pooled import DIMENSIONS

from tests.support.routers import KEY, MODEL, PATIENCE_S, fleet, until

AUTH = {"Authorization": f"Bearer {KEY}"}


def client_of(router: Router, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S, headers=headers)


def completion(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8} | changes


async def events_of(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[str]:
    """The data of a stream's events."""
    async with client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [line[6:] async for line in response.aiter_lines() if line.startswith("data: ")]


async def test_a_completion_is_answered_with_its_usage() -> None:
    async with fleet() as (router, _), client_of(router) as client:
        response = await client.post("/v1/completions", json=completion())
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 8
    assert response.headers["x-request-id"]


async def test_every_endpoint_is_served_whole_and_streamed() -> None:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    generate = {"text": "Hi", "sampling_params": {"max_new_tokens": 4}}
    async with fleet() as (router, _), client_of(router, **AUTH) as client:
        for path, body in (
            ("/v1/completions", completion()),
            ("/v1/chat/completions", chat),
            ("/generate", generate),
        ):
            whole = await client.post(path, json=body)
            assert whole.status_code == 200, whole.text
            events = await events_of(client, path, body | {"stream": True})
            assert events[-1] == "[DONE]"
            assert len(events) > 4
        embedded = await client.post("/v1/embeddings", json={"model": MODEL, "input": "Hi"})
        assert embedded.status_code == 200, embedded.text
        assert len(embedded.json()["data"][0]["embedding"]) == DIMENSIONS
        models = (await client.get("/v1/models")).json()
        assert [model["id"] for model in models["data"]] == [MODEL]


async def test_the_usage_event_of_a_stream_is_the_clients_only_if_it_asked() -> None:
    async with fleet() as (router, _), client_of(router, **AUTH) as client:
        plain = await events_of(client, "/v1/completions", completion(stream=True))
        asked = await events_of(
            client,
            "/v1/completions",
            completion(stream=True, stream_options={"include_usage": True}),
        )
        totals = next(router.rooms.totals.clients())
        await until(lambda: totals.output_tokens == 16, "both streams to be accounted for")
    assert all(json.loads(event)["choices"] for event in plain[:-1])
    assert json.loads(asked[-2])["usage"]["completion_tokens"] == 8


async def test_a_client_key_reaches_the_replicas_scheduler_on_every_endpoint() -> None:
    async with fleet(1) as (router, _), client_of(router, **AUTH) as client:
        await client.post("/v1/completions", json=completion())
        await client.post(
            "/generate", json={"text": "Hi", "sampling_params": {"max_new_tokens": 4}}
        )
        page = router.rooms.service_ledger.ledger.replica_accounts[
            router.rooms.service_ledger.accounting.incarnation("r0")
        ]
        await until(
            lambda: page.clients.cell("ns/acme/chat", REQUESTS) == 2, "both requests in the report"
        )
    acme = router.rooms.settings.config.tenancy.tenants[0]
    key = decode(identity.client_of(acme, acme.clients[0].name).key)
    assert (key.tenant_weight, key.client_weight) == (2, 3)


async def test_requests_with_one_prefix_go_where_it_is_cached() -> None:
    prompt = "All happy families are alike. " * 100
    async with fleet(3) as (router, _), client_of(router, **AUTH) as client:
        for n in range(6):
            response = await client.post("/v1/completions", json=completion(prompt=f"{prompt}{n}"))
            assert response.status_code == 200
        sent = {name: totals.requests for name, totals in router.rooms.replicas.totals.items()}
        totals = next(router.rooms.totals.clients())
    assert max(sent.values()) == 6
    assert totals.cached_tokens > 0.7 * totals.input_tokens


async def test_the_admin_port_shows_clients_replicas_and_credit() -> None:
    constant = SchedulingConfig(worker_quantum=20_000)  # an automatic one keeps no credit
    async with (
        fleet(2, scheduling=constant) as (router, _),
        client_of(router, **AUTH) as client,
    ):
        await client.post("/v1/completions", json=completion())
        await until(lambda: len(router.rooms.replicas.reports) == 2, "reports of both replicas")
        url = f"http://127.0.0.1:{router.admin_port}/v1/state"
        state = decode_state((await client.get(url)).content)
    (acme,) = state.tenants
    chat = {c.name: c for c in acme.clients}["chat"]
    assert (chat.requests, chat.output_tokens, chat.weight) == (1, 8, 3)
    assert {replica.name for replica in state.replicas if replica.routable} == {
        "r0",
        "r1",
    }
    assert {at.replica for at in chat.replicas} == {"r0", "r1"}
    assert state.fleet_policy == "D2LPM"


async def test_the_admin_port_shows_the_replicas_alone_with_the_token() -> None:
    async with fleet(2) as (router, _), client_of(router, **AUTH) as client:
        await client.post("/v1/completions", json=completion())
        url = f"http://127.0.0.1:{router.admin_port}"
        whole = decode_state((await client.get(f"{url}/v1/state")).content)
        alone = decode_replicas((await client.get(f"{url}/v1/replicas")).content)
        assert [(one.name, one.requests, one.prefix_blocks) for one in alone.replicas] == [
            (one.name, one.requests, one.prefix_blocks) for one in whole.replicas
        ]
        token = hashlib.sha256(b"token").hexdigest()
        router.rooms.settings.config = replace(
            router.rooms.settings.config, admin_token_sha256=token
        )
        refused = await client.get(f"{url}/v1/replicas", headers={"Authorization": "Bearer no"})
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        for scheme, status in (("bearer", 200), ("Basic", 401)):
            headers = {"Authorization": f"{scheme} token"}
            assert (await client.get(f"{url}/v1/replicas", headers=headers)).status_code == status


async def test_metrics_count_requests_tokens_and_errors() -> None:
    async with fleet() as (router, _), client_of(router, **AUTH) as client:
        await client.post("/v1/completions", json=completion())
        await client.post("/v1/completions", json=completion(model="other"))
        text = (await client.get(f"http://127.0.0.1:{router.probe_port}/metrics")).text
    labels = 'client="chat",model_name="llama",tenant="acme"'
    assert f"evenkeel_router_request_total{{{labels}}} 2.0" in text
    assert 'evenkeel_router_request_error_total{client="chat",error_code="not_found"' in text
    assert f"evenkeel_router_client_output_tokens_total{{{labels}}} 8.0" in text
    assert f"evenkeel_router_client_ttft_seconds_count{{{labels}}} 1.0" in text
    labels = 'model_name="llama",tenant="acme"'
    assert f"evenkeel_router_request_output_tokens_sum{{{labels}}} 8.0" in text


async def test_a_client_that_leaves_aborts_its_request_at_the_replica() -> None:
    async with fleet(1) as (router, (server,)), client_of(router, **AUTH) as client:
        body = completion(stream=True, max_tokens=4000)
        async with client.stream("POST", "/v1/completions", json=body) as response:
            await anext(response.aiter_bytes())
        await until(lambda: not router.rooms.intake.admission.running, "the request to be over")
        totals = next(router.rooms.totals.clients())
        assert [outcome.value for outcome in totals.errors] == ["client_gone"]
        await until(
            lambda: not list(server.replica.driver.unfinished()), "the replica to have aborted it"
        )
