"""Headers that are invalid, name another client, or would steer the engine; and tenants beyond their limit."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from evenkeel_contract.key import decode
from evenkeel_contract.routerconfig import Anonymous, TenantLimits
from evenkeel_router.api.errors import Outcome
from evenkeel_router.app import running

from tests.support.nasty import Asked, fine, nasty
from tests.support.raw_clients import AUTH, BODY, behind, counted, error_of, http, raw
from tests.support.routers import KEY, MODEL, QUICK, config_for, routable, tenancy


@pytest.mark.parametrize(
    "line",
    [
        b"X-Bad: a\x01b",
        b"X-Bad: a\x00b",
        b"X-Bad: a\rX-Injected: b",
        b"X-Bad : a",
        b"X B: a",
        b"Content-Length: 7",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: chunked, chunked",
    ],
)
async def test_an_invalid_header_is_refused_with_openais_error(line: bytes) -> None:
    async with behind() as (router, replica):
        status, body = await raw(router, line)
        assert status == 400
        assert error_of(body)["code"] == "invalid_http"
        assert counted(router) == {Outcome.INVALID_REQUEST: 1}
        assert not replica.asked


@pytest.mark.parametrize(
    "lines",
    [
        (AUTH, AUTH),
        ("x-evenkeel-client: acme", "X-Evenkeel-Client: acme/batch"),
        ("x-evenkeel-client: acme", "x-llm-d-inference-fairness-id: acme"),
    ],
)
async def test_two_identity_headers_are_refused(lines: tuple[str, ...]) -> None:
    async with behind() as (router, replica):
        status, body = await raw(router, *lines)
        assert (status, error_of(body)["code"]) == (400, "duplicate_header")
        assert not replica.asked


async def test_an_identity_header_of_an_untrusted_peer_is_ignored_and_counted() -> None:
    async with behind() as (router, (replica)):
        status, _ = await raw(router, "x-evenkeel-client: acme/chat")
        assert status == 200
        key = decode(replica.asked[0].headers["x-smg-routing-key"])
        assert key.identity == "ns/anonymous/anonymous"
        assert "x-evenkeel-client" not in replica.asked[0].headers
        assert router.rooms.totals.stripped == {"identity-header": 1}


async def test_an_identity_header_of_a_trusted_proxy_is_believed_if_it_makes_sense() -> None:
    async with behind(tenancy=tenancy(trusted_proxies=("127.0.0.0/8",))) as (router, replica):
        assert (await raw(router, "x-evenkeel-client: acme/batch"))[0] == 200
        assert decode(replica.asked[0].headers["x-smg-routing-key"]).identity == "ns/acme/batch"
        status, body = await raw(router, "x-evenkeel-client: missing")
        assert (status, error_of(body)["code"]) == (403, "unknown_tenant")
        status, body = await raw(router, "x-evenkeel-client: acme/b\xe4tch")
        assert (status, error_of(body)["code"]) == (400, "invalid_header")
        status, body = await raw(router, "x-evenkeel-client: acme\x01")
        assert (status, error_of(body)["code"]) == (400, "invalid_http")


async def test_without_an_identity_or_with_a_wrong_key_there_is_401() -> None:
    async with behind(tenancy=tenancy(anonymous=Anonymous.REJECT)) as (router, replica):
        status, body = await raw(router)
        assert (status, error_of(body)["code"]) == (401, "missing_api_key")
        status, body = await raw(router, "Authorization: Bearer wrong")
        assert (status, error_of(body)["code"]) == (401, "invalid_api_key")
        assert counted(router) == {Outcome.UNAUTHENTICATED: 2}
        assert not replica.asked


async def test_a_401_names_the_scheme_to_use() -> None:
    async with (
        behind(tenancy=tenancy(anonymous=Anonymous.REJECT)) as (router, _),
        http(router) as client,
    ):
        missing = await client.post("/v1/completions", json=BODY)
        wrong = await client.get("/v1/models", headers={"Authorization": "Bearer wrong"})
        assert [missing.status_code, wrong.status_code] == [401, 401]
        assert missing.headers["www-authenticate"] == "Bearer"
        assert wrong.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        unknown = await client.get("/nowhere")
        assert (unknown.status_code, "www-authenticate" in unknown.headers) == (404, False)
        state = await client.get(f"http://127.0.0.1:{router.admin_port}/v1/state")
        assert state.status_code == 200, "no admin token is configured here"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
async def test_what_would_steer_the_engine_never_reaches_it(path: str) -> None:
    smuggled = {
        "routing_key": "ek1;a/b/c;w=999,999",
        "rid": "HEALTH_CHECK_1",
        "priority": -100,
        "extra_key": "x",
        "custom_params": {},
        "cache_salt": "s",
    }
    clean = {
        "/v1/completions": {"model": MODEL, "prompt": "x"},
        "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user"}]},
        "/generate": {"text": "x"},
    }
    body = clean[path] | smuggled
    async with behind() as (router, replica), http(router) as client:
        headers = {"x-smg-routing-key": smuggled["routing_key"], "x-custom-labels": "client=other"}
        response = await client.post(path, json=body, headers=headers)
        assert response.status_code == 200
        (asked,) = replica.asked
        sent = json.loads(asked.body)
        key = sent.pop("routing_key", None) or asked.headers["x-smg-routing-key"]
        assert sent.pop("cache_salt") == asked.headers["x-evenkeel-cache-salt"] != "s"
        assert decode(key).identity == "ns/anonymous/anonymous"
        assert sent == clean[path]
        assert response.headers["x-evenkeel-removed-fields"] == ", ".join(smuggled)
        assert "x-custom-labels" not in asked.headers
        counted_fields = router.rooms.totals.stripped
        assert counted_fields == dict.fromkeys(
            [*smuggled, "x-smg-routing-key", "x-custom-labels"], 1
        )


async def test_the_configuration_opens_a_field_and_no_other() -> None:
    body = BODY | {"priority": -100, "rid": "x"}
    async with behind(allow_fields=("priority",)) as (router, replica), http(router) as client:
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 200
        sent = json.loads(replica.asked[0].body)
        assert (sent["priority"], "rid" in sent) == (-100, False)
        assert response.headers["x-evenkeel-removed-fields"] == "rid"
        plain = await client.post("/v1/completions", json=BODY)
        assert "x-evenkeel-removed-fields" not in plain.headers


async def test_a_request_id_is_kept_if_it_is_well_formed_and_made_otherwise() -> None:
    async with behind() as (router, replica), http(router) as client:
        ids = []
        for given in ("trace-7.a:b_c", "bad id", "x" * 200, "", "é"):
            header = {"x-request-id": given.encode()}
            ids.append((await client.post("/v1/completions", json=BODY, headers=header)).headers)
        got = [headers["x-request-id"] for headers in ids]
        assert got[0] == "trace-7.a:b_c"
        # Engines end requests by their id, so the client's own never gets there.
        sent = [asked.headers["x-request-id"] for asked in replica.asked]
        assert len(set(sent)) == 5
        assert got[0] not in sent
        assert len(set(got)) == 5
        assert all(len(made) < 40 and made.isascii() for made in got[1:])
        refused = await client.post("/v1/completions", content=b"{")
        assert refused.headers["x-request-id"]


async def test_requests_and_attempts_with_one_id_have_ids_of_their_own_at_replicas() -> None:
    async def fails_once(asked: Asked) -> None:
        if len(seen) == 0:
            seen.append(asked)
            await asked.answer(b"{}", status="500 Internal Server Error")
        else:
            await fine(asked)

    seen: list[Asked] = []
    log = io.StringIO()
    async with nasty(fails_once) as first, nasty(fails_once) as second:
        config = config_for(first.config("r0"), second.config("r1"))
        async with running(config, timing=QUICK, log_output=log) as router, http(router) as client:
            await routable(router, 2)
            for _ in range(2):
                given = {"x-request-id": "mine"}
                answer = await client.post("/v1/completions", json=BODY, headers=given)
                assert answer.headers["x-request-id"] == "mine"
    ids = [asked.headers["x-request-id"] for asked in (*first.asked, *second.asked)]
    assert len(set(ids)) == 3
    assert "mine" not in ids
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["request_id"] for line in lines] == ["mine", "mine"]
    own = [line["upstream_id"] for line in lines]
    assert own[0].endswith("-try2")
    assert set(ids) == {own[0], own[0].removesuffix("-try2"), own[1]}


async def test_a_tenants_rate_limit_is_429_with_the_time_to_wait() -> None:
    limited = tenancy()
    acme = replace(limited.tenants[0], limits=TenantLimits(requests_per_minute=1))
    async with (
        behind(tenancy=replace(limited, tenants=(acme,))) as (router, _),
        http(router) as client,
    ):
        headers = {"Authorization": f"Bearer {KEY}"}
        assert (await client.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
        response = await client.post("/v1/completions", json=BODY, headers=headers)
        assert response.status_code == 429
        assert error_of(response.content)["code"] == "requests_per_minute"
        assert 50 <= int(response.headers["retry-after"]) <= 60
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200  # another one
        assert counted(router) == {Outcome.RATE_LIMITED: 1}
