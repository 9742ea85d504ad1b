"""Tokens of an issuer at a real router: its keys are read on the way, and it may fail in each way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from evenkeel_contract.routerconfig import Anonymous, RouterConfig
from evenkeel_contract.tokenissuers import TokenIssuerConfig
from evenkeel_router.app import Router, running
from evenkeel_router.ledger import key_sets

from tests.support.issuers import AUDIENCE, ISSUER, Issuer, issuer, rsa, token
from tests.support.ports import free_ports
from tests.support.routers import PATIENCE_S, QUICK, config_for, fleet, tenancy

GENERIC = "The API key is unknown to this service."


def config(url: str) -> RouterConfig:
    found = TokenIssuerConfig(issuer=ISSUER, audience=AUDIENCE, jwks_URL=url, tenant_claim="team")
    return config_for(tenancy=tenancy(jwt=(found,), anonymous=Anonymous.SHARE))


@asynccontextmanager
async def in_front_of(found: Issuer) -> AsyncIterator[Router]:
    async with running(config(found.url), timing=QUICK) as router:
        yield router


async def asked(router: Router, text: str, path: str = "/v1/models") -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        headers = {"Authorization": f"Bearer {text}"}
        return await client.get(f"{router.url}{path}", headers=headers)


async def test_a_request_with_a_token_is_served_and_accounted_to_its_client() -> None:
    async with issuer(rsa("a")) as one:
        found = TokenIssuerConfig(
            issuer=ISSUER, audience=AUDIENCE, jwks_URL=one.url, tenant_claim="team"
        )
        async with (
            fleet(1, tenancy=tenancy(jwt=(found,))) as (router, _),
            httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client,
        ):
            body = {"model": "llama", "prompt": "x", "max_tokens": 3, "ignore_eos": True}
            headers = {"Authorization": f"Bearer {token(rsa('a'))}"}
            answer = await client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            (totals,) = router.rooms.totals.clients()
            assert (totals.identity, totals.output_tokens) == ("ns/acme/ann", 3)


async def test_a_new_key_of_the_issuer_is_read_when_a_token_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_sets, "PAUSE_S", 0.0)
    async with issuer(rsa("a")) as one, in_front_of(one) as router:
        assert (await asked(router, token(rsa("a")))).status_code == 200
        one.keys = [rsa("b")]
        assert (await asked(router, token(rsa("b")))).status_code == 200
        # The key that the issuer withdrew is not accepted any more, although it was before.
        assert (await asked(router, token(rsa("a")))).status_code == 401


async def test_tokens_with_made_up_keys_do_not_make_the_router_ask_each_time() -> None:
    async with issuer(rsa("a")) as one, in_front_of(one) as router:
        assert (await asked(router, token(rsa("a")))).status_code == 200
        before = one.asked
        answers = await asyncio.gather(*(asked(router, token(rsa("c"))) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {401}
        assert one.asked <= before + 1


async def test_requests_that_arrive_together_ask_the_issuer_once() -> None:
    async with issuer(rsa("a")) as one, in_front_of(one) as router:
        answers = await asyncio.gather(*(asked(router, token(rsa("a"))) for _ in range(10)))
        assert {answer.status_code for answer in answers} == {200}
        assert one.asked <= 2


async def test_tokens_of_an_issuer_that_never_answered_get_503() -> None:
    (port,) = free_ports(1)
    async with running(config(f"http://127.0.0.1:{port}/keys"), timing=QUICK) as router:
        for _ in range(2):
            answer = await asked(router, token(rsa("a")))
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert "issuer" not in answer.text


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, None), (302, None), (200, "<html>"), (200, '{"keys": []}'), (200, "x" * 300_000)],
)
async def test_keys_stay_in_use_while_the_issuer_answers_nonsense(
    monkeypatch: pytest.MonkeyPatch, status: int, body: str | None
) -> None:
    monkeypatch.setattr(key_sets, "PAUSE_S", 0.0)
    async with issuer(rsa("a")) as one, in_front_of(one) as router:
        assert (await asked(router, token(rsa("a")))).status_code == 200
        one.status, one.body = status, body
        assert (await asked(router, token(rsa("b")))).status_code == 401
        assert (await asked(router, token(rsa("a"), sub="bob"))).status_code == 200


async def test_why_a_token_is_refused_is_in_log_and_metric_and_not_in_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "evenkeel_router.request.audit")
    wrong = {
        "expired": {"exp": 1},
        "wrong_audience": {"aud": "other"},
        "no_tenant": {"team": None},
    }
    async with issuer(rsa("a")) as one, in_front_of(one) as router:
        for changes in wrong.values():
            answer = await asked(router, token(rsa("a"), **changes))
            assert answer.json()["error"]["message"] == GENERIC
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"http://127.0.0.1:{router.probe_port}/metrics")).text
    for reason in wrong:
        line = (
            f'evenkeel_router_credentials_refused_total{{model_name="llama",reason="{reason}"}} 1'
        )
        assert line in page
        assert reason in caplog.text
    assert "eyJ" not in caplog.text


async def test_the_console_of_a_tenant_opens_with_a_token() -> None:
    async with issuer(rsa("a")) as one, in_front_of(one) as router:
        answer = await asked(router, token(rsa("a")), "/v1/console")
        assert answer.status_code == 200, answer.text
