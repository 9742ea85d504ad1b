"""Several services behind one address: the `model` of a request chooses the service, and each keeps what is its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from io import StringIO
from typing import Any

import httpx
import pytest
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.revocations import (
    REVOCATIONS_PATH,
    RevocationMessage,
    encode,
    revocation_of,
)
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    LimitsConfig,
    PoolConfig,
    RouterConfig,
    SchedulingConfig,
    TenancyConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_contract.signedkeys import SignedKey, SignedKeysConfig, SigningKeyConfig, mint
from evenkeel_contract.tokenissuers import TokenIssuerConfig
from evenkeel_router.app import Router, running
from evenkeel_router.settings import Timing
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.server.app import RunningServer, running_server
from openai import AsyncOpenAI

from tests.support.issuers import AUDIENCE, ISSUER, issuer, rsa, token
from tests.support.routers import QUICK, config_for, replica_of, sha256, simulated, until

BIG, SMALL = "big-70b", "small-8b"
ADS, RESEARCH = "sk-ads", "sk-research"
SECRET = "s" * 32


def tenant(name: str, key: str, **changes: Any) -> TenantConfig:
    return TenantConfig(
        namespace="ns",
        name=name,
        clients=(ClientConfig(name="app"),),
        api_keys=(ApiKeyConfig(name="k", client="app", sha256=sha256(key)),),
        **changes,
    )


def pool(service: str, model: str, *servers: RunningServer, **changes: Any) -> PoolConfig:
    replicas = tuple(replica_of(one, f"{service}-{n}") for n, one in enumerate(servers))
    return PoolConfig(service=service, model=model, replicas=replicas, **changes)


def config_of(*pools: PoolConfig, **changes: Any) -> RouterConfig:
    tenants = (tenant("ads", ADS), tenant("research", RESEARCH))
    given = {"service": "all", "model": "all", "tenancy": TenancyConfig(tenants=tenants)}
    return config_for(pools=pools, **(given | changes))


async def known(router: Router, *services: str) -> None:
    """Wait until all replicas of these services are routable."""

    def ready() -> bool:
        found = [router.services.served.services.get(name) for name in services]
        fleets = [one.rooms.replicas.fleet for one in found if one is not None]
        return len(fleets) == len(services) and all(
            fleet.routable.bit_count() == len(list(fleet)) > 0 for fleet in fleets
        )

    await until(ready, f"routable replicas of {services}")


class Stage:
    """A router with two models, and a client."""

    def __init__(
        self, router: Router, http: httpx.AsyncClient, servers: Mapping[str, RunningServer]
    ) -> None:
        self.router, self.http, self.servers = router, http, servers
        self.ends: dict[str, AsyncExitStack] = {}
        """Model → what ends its replica."""

    async def end(self, model: str, service: str) -> None:
        """The replica of a model ends, and the router knows."""
        await self.ends[model].aclose()
        fleet = self.router.services.served.services[service].rooms.replicas.fleet
        await until(lambda: not fleet.routable, f"no replica of {service}")

    async def chat(self, model: str | None, *, key: str = ADS, **more: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **more}
        if model is not None:
            body["model"] = model
        return await self.http.post(
            "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
        )

    async def models(self, key: str = ADS) -> list[dict[str, Any]]:
        answer = await self.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        data: list[dict[str, Any]] = answer.json()["data"]
        return data

    async def admin(self, path: str) -> httpx.Response:
        url = f"http://127.0.0.1:{self.router.admin_port}{path}"
        return await self.http.get(url)

    def served(self, name: str) -> int:
        """Requests that a replica admitted."""
        accounts = self.servers[name].replica.engine.accounts
        return sum(client.requests for client in accounts.clients.values())


@asynccontextmanager
async def stage(
    *,
    big: Mapping[str, Any] = {},
    small: Mapping[str, Any] = {},
    log: StringIO | None = None,
    timing: Timing = QUICK,
    **changes: Any,
) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        servers, ends = {}, {}
        for name in (BIG, SMALL):
            ends[name] = await stack.enter_async_context(AsyncExitStack())
            server = running_server(simulated(model=name))
            servers[name] = await ends[name].enter_async_context(server)
        config = config_of(
            pool("big", BIG, servers[BIG], **big),
            pool("small", SMALL, servers[SMALL], **small),
            **changes,
        )
        router = await stack.enter_async_context(running(config, timing=timing, log_output=log))
        await known(router, "big", "small")
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=router.url, timeout=20))
        found = Stage(router, http, servers)
        found.ends = ends
        yield found


async def test_the_model_of_a_request_chooses_the_service() -> None:
    async with stage() as at:
        for model in (BIG, SMALL, SMALL):
            answer = await at.chat(model)
            assert answer.status_code == 200
            assert answer.json()["model"] == model
        assert (at.served(BIG), at.served(SMALL)) == (1, 2)


async def test_a_stock_client_lists_and_streams_every_model() -> None:
    async with stage() as at, AsyncOpenAI(base_url=f"{at.router.url}/v1", api_key=ADS) as client:
        names = [model.id async for model in client.models.list()]
        assert names == [BIG, SMALL]
        assert (await client.models.retrieve(SMALL)).id == SMALL
        for name in names:
            stream = await client.chat.completions.create(
                model=name,
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=4,
                stream=True,
            )
            assert {event.model async for event in stream} == {name}


async def test_an_unknown_model_gets_404_with_the_nearest_name() -> None:
    async with stage() as at:
        answer = await at.chat("smal-8b")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert f"did you mean {SMALL}?" in answer.json()["error"]["message"]


async def test_a_tenant_sees_and_uses_only_its_own_models() -> None:
    async with stage(big={"tenants": ("ads",)}) as at:
        assert [card["id"] for card in await at.models(RESEARCH)] == [SMALL]
        assert [card["id"] for card in await at.models(ADS)] == [BIG, SMALL]
        refused = await at.chat(BIG, key=RESEARCH)
        assert refused.status_code == 404
        assert BIG not in refused.json()["error"]["message"].removeprefix(f"The model '{BIG}'")
        assert (await at.chat(BIG, key=ADS)).status_code == 200


async def test_a_request_without_a_model_gets_the_only_one_or_400() -> None:
    async with stage(big={"tenants": ("ads",)}) as at:
        assert (await at.chat(None, key=RESEARCH)).status_code == 200
        assert (at.served(BIG), at.served(SMALL)) == (0, 1)
        refused = await at.chat(None)
        assert refused.status_code == 400
        assert f"({BIG}, {SMALL})" in refused.json()["error"]["message"]


async def test_replicas_get_the_name_that_they_know() -> None:
    async with stage(big={"names": ("smart", "gpt-4o")}) as at:
        assert [card["id"] for card in await at.models()] == ["smart", "gpt-4o", SMALL]
        for name in ("smart", "gpt-4o"):
            assert (await at.chat(name)).json()["model"] == BIG
        assert (await at.chat(BIG)).status_code == 404


async def test_a_large_body_names_its_model_too() -> None:
    async with stage(big={"names": ("smart",)}) as at:
        content = "x" * 1_200_000
        answer = await at.chat("smart", messages=[{"role": "user", "content": content}])
        # The replica's context is smaller: its own refusal shows that it got the request.
        assert answer.status_code in (200, 400)
        assert sum(one.requests for one in totals_of(at, "big")) == 1


async def test_a_form_names_its_model() -> None:
    async with stage(small={"names": ("whisper",)}) as at:
        await at.http.post(  # simulated replicas have no ears: one of them says so
            "/v1/audio/transcriptions",
            data={"model": "whisper"},
            files={"file": ("a.wav", b"RIFF" + bytes(64), "audio/wav")},
            headers={"Authorization": f"Bearer {ADS}"},
        )
        assert sum(one.requests for one in totals_of(at, "small")) == 1
        assert (
            at.router.services.served.services["small"].rooms.replicas.totals["small-0"].requests
            == 1
        )


def totals_of(at: Stage, service: str) -> list[Any]:
    return list(at.router.services.served.services[service].rooms.totals.clients())


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"{", "invalid_json"), (b'{"model": 5}', "invalid_type"), (b"[]", "invalid_type")],
)
async def test_a_body_that_names_no_model_is_refused_as_ever(body: bytes, code: str) -> None:
    async with stage() as at:
        answer = await at.http.post(
            "/v1/chat/completions", content=body, headers={"Authorization": f"Bearer {ADS}"}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == code
        assert at.router.rooms.intake.body_memory.used_bytes == 0


async def test_an_unknown_key_is_refused_before_its_body_is_read() -> None:
    async with stage() as at:
        assert (await at.chat(BIG, key="sk-nobody")).status_code == 401
        text = (await at.http.get(f"http://127.0.0.1:{at.router.probe_port}/metrics")).text
        series = [line for line in text.splitlines() if 'error_code="unauthenticated"' in line]
        assert len(series) == 1
        assert 'model_name=""' in series[0]


async def test_a_signed_key_and_a_token_of_an_issuer_open_every_model() -> None:
    """Neither is in a list. Each model's ledger has the clients, and a revoked key opens none."""
    async with issuer(rsa("a")) as one:
        found = TokenIssuerConfig(
            issuer=ISSUER, audience=AUDIENCE, jwks_URL=one.url, tenant_claim="team"
        )
        signing = SignedKeysConfig(keys=(SigningKeyConfig(id="a", secret=SECRET),))
        tenants = (tenant("acme", ADS), tenant("research", RESEARCH))
        tenancy = TenancyConfig(tenants=tenants, jwt=(found,), signed_keys=signing)
        async with stage(tenancy=tenancy, big={"tenants": ("acme",)}) as at:
            now = int(time.time())
            key, outsider = (
                mint(SignedKey("a", f"id-{name}", "ns", name, "bea", now, now + 3600), SECRET)
                for name in ("acme", "research")
            )
            for credential in (key, token(rsa("a"))):
                answers = [
                    (await at.chat(model, key=credential)).status_code for model in (BIG, SMALL)
                ]
                assert answers == [200, 200]
            assert [card["id"] for card in await at.models(outsider)] == [SMALL]
            assert (await at.chat(BIG, key=outsider)).status_code == 404
            for service in ("big", "small"):
                clients = {one.identity: one.requests for one in totals_of(at, service)}
                assert clients == {"ns/acme/bea": 1, "ns/acme/ann": 1}
            message = RevocationMessage((revocation_of("id-acme", time.time()),))
            url = f"http://127.0.0.1:{at.router.admin_port}{REVOCATIONS_PATH}"
            assert (await at.http.put(url, content=encode(message))).status_code == 204
            assert [(await at.chat(model, key=key)).status_code for model in (BIG, SMALL)] == [
                401,
                401,
            ]


async def test_limits_of_a_tenant_hold_over_all_models() -> None:
    limits = TenantLimits(requests_per_minute=60, burst_requests=2)
    tenancy = TenancyConfig(tenants=(tenant("ads", ADS, limits=limits),))
    async with stage(tenancy=tenancy) as at:
        answers = [await at.chat(model) for model in (BIG, SMALL, BIG)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_metrics_state_and_logs_say_which_model() -> None:
    log = StringIO()
    async with stage(log=log) as at:
        for model in (BIG, SMALL, SMALL):
            await at.chat(model)
        state = decode_state((await at.admin("/v1/state")).content)
        assert (state.service, state.replicas, state.tenants) == ("all", (), ())
        requests = {
            one.model: sum(client.requests for own in one.tenants for client in own.clients)
            for one in state.services
        }
        assert requests == {BIG: 1, SMALL: 2}
        only = decode_state((await at.admin("/v1/state?service=small")).content)
        assert (only.model, only.services) == (SMALL, ())
        unknown = await at.admin("/v1/replicas")
        assert unknown.status_code == 404
        assert "big, small" in unknown.json()["error"]["message"]

        text = (await at.http.get(f"http://127.0.0.1:{at.router.probe_port}/metrics")).text
        heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(heads) == len(set(heads))
        name = "evenkeel_router_request_total"
        assert (
            f'{name}{{client="app",evenkeel_dev_service="small",model_name="{SMALL}",tenant="ads"}} 2.0'
            in text
        )
        connections = [
            line for line in text.splitlines() if line.startswith("evenkeel_router_connections{")
        ]
        assert len(connections) == 1
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert sorted(line["model"] for line in lines if "model" in line) == [BIG, SMALL, SMALL]


async def test_each_model_has_a_ledger_of_its_own() -> None:
    async with stage() as at:
        await at.chat(BIG, messages=[{"role": "user", "content": "hello " * 100}])
        big, small = (at.router.services.served.services[name].rooms for name in ("big", "small"))

        def counted() -> bool:
            return bool(big.service_ledger.fairness.now.clients)

        await until(counted, "service in the ledger")
        assert not small.service_ledger.fairness.now.clients
        assert len(big.replicas.fleet.index) > 0 == len(small.replicas.fleet.index)


class Edited:
    """A source of changed configurations."""

    def __init__(self) -> None:
        self.apply: Any = None

    async def watch(self, apply: Any, complain: Any) -> None:
        self.apply = apply


async def test_models_come_and_go_while_others_serve() -> None:
    async with AsyncExitStack() as stack:
        big, small = [
            await stack.enter_async_context(running_server(simulated(model=name)))
            for name in (BIG, SMALL)
        ]
        both = config_of(pool("big", BIG, big), pool("small", SMALL, small))
        one = replace(both, pools=both.pools[:1])
        source = Edited()
        router = await stack.enter_async_context(running(one, timing=QUICK, source=source))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=router.url, timeout=20))
        at = Stage(router, http, {BIG: big, SMALL: small})
        await known(router, "big")
        assert (await at.chat(SMALL)).status_code == 404
        await until(lambda: source.apply is not None, "a watch of the configuration")
        await source.apply(both)
        await known(router, "big", "small")
        assert (await at.chat(SMALL)).status_code == 200
        long = {"max_tokens": 400}
        async with http.stream(
            "POST",
            "/v1/completions",
            json={"model": SMALL, "prompt": "x", "stream": True, **long},
            headers={"Authorization": f"Bearer {ADS}"},
        ) as stream:
            events = stream.aiter_lines()
            await anext(events)
            await source.apply(one)
            assert (await at.chat(SMALL)).status_code == 404
            assert (await at.chat(BIG)).status_code == 200
            rest = [line async for line in events if line]
        assert rest[-1] == "data: [DONE]"
        await until(lambda: "small" not in router.services.served.services, "a closed service")


async def test_one_service_cannot_become_several_without_a_restart() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(simulated()))
        config = config_for(replica_of(server))
        source = Edited()
        router = await stack.enter_async_context(running(config, timing=QUICK, source=source))
        await until(lambda: source.apply is not None, "a watch of the configuration")
        await source.apply(replace(config, replicas=(), pools=(pool("svc", "llama", server),)))
        assert "restart" in router.rooms.settings.faults[0]
        assert router.rooms.settings.config == config


def status_of_fallback(at: Stage) -> dict[tuple[str, str], int]:
    return at.router.services.served.fallen_back


async def test_a_model_without_replicas_is_served_by_its_fallback() -> None:
    async with stage(big={"fallback": (SMALL,)}) as at:
        await at.end(BIG, "big")
        answer = await at.chat(BIG)
        assert answer.status_code == 200
        assert (answer.json()["model"], answer.headers["x-evenkeel-model"]) == (SMALL, SMALL)
        assert "x-evenkeel-model" not in (await at.chat(SMALL)).headers
        assert status_of_fallback(at) == {(BIG, SMALL): 1}
        text = (await at.http.get(f"http://127.0.0.1:{at.router.probe_port}/metrics")).text
        name = "evenkeel_router_fallback_total"
        assert f'{name}{{fallback="{SMALL}",model_name="{BIG}"}} 1.0' in text


async def test_a_fallback_streams_and_says_which_model_serves() -> None:
    async with stage(big={"fallback": (SMALL,)}) as at:
        await at.end(BIG, "big")
        body = {"model": BIG, "prompt": "x", "max_tokens": 4, "stream": True}
        headers = {"Authorization": f"Bearer {ADS}"}
        async with at.http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            assert answer.headers["x-evenkeel-model"] == SMALL
            lines = [line async for line in answer.aiter_lines() if line]
        assert json.loads(lines[0].removeprefix("data: "))["model"] == SMALL
        assert lines[-1] == "data: [DONE]"


async def test_a_request_that_forbids_a_fallback_waits_and_gets_503() -> None:
    limits = LimitsConfig(queue_timeout_s=0.2)
    async with stage(big={"fallback": (SMALL,), "limits": limits}) as at:
        await at.end(BIG, "big")
        answer = await at.http.post(
            "/v1/completions",
            json={"model": BIG, "prompt": "x", "max_tokens": 4},
            headers={"Authorization": f"Bearer {ADS}", "x-evenkeel-fallback": "None"},
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
        assert at.served(SMALL) == 0
        assert status_of_fallback(at) == {}


async def test_a_model_that_a_tenant_may_not_use_is_no_fallback_for_it() -> None:
    limits = LimitsConfig(queue_timeout_s=0.2)
    big, small = {"fallback": (SMALL,), "limits": limits}, {"tenants": ("ads",)}
    async with stage(big=big, small=small) as at:
        await at.end(BIG, "big")
        assert (await at.chat(BIG, key=RESEARCH)).status_code == 503
        assert (await at.chat(BIG, key=ADS)).json()["model"] == SMALL


async def test_an_overloaded_model_falls_back_when_its_queue_times_out() -> None:
    engine = EngineConfig(max_running=1)
    slow = simulated(model=BIG, speed=1.0, engine=engine, replica_policy="FCFS", reports_port=None)
    async with AsyncExitStack() as stack:
        big = await stack.enter_async_context(running_server(slow))
        small = await stack.enter_async_context(running_server(simulated(model=SMALL)))
        scheduling = SchedulingConfig(queue=QueueOwner.ROUTER)
        given = {"scheduling": scheduling, "limits": LimitsConfig(queue_timeout_s=0.3)}
        config = config_of(
            pool("big", BIG, big, fallback=(SMALL,), **given), pool("small", SMALL, small)
        )
        router = await stack.enter_async_context(running(config, timing=QUICK))
        await known(router, "big", "small")
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=router.url, timeout=60))
        at = Stage(router, http, {BIG: big, SMALL: small})
        many = [at.chat(BIG, max_tokens=64, ignore_eos=True) for _ in range(12)]
        answers = await asyncio.gather(*many)
        assert {answer.status_code for answer in answers} == {200}
        fell = [answer for answer in answers if "x-evenkeel-model" in answer.headers]
        assert 0 < len(fell) < len(answers)
        assert {answer.json()["model"] for answer in fell} == {SMALL}
        big_rooms = router.services.served.services["big"].rooms
        assert big_rooms.intake.admission.running == 0
