"""The console of a live router: who may read what, and that its figures are those of `evenkeel top`."""

from __future__ import annotations

import asyncio
import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from evenkeel_cli.top.view import make_view
from evenkeel_contract.adminstate import STATE_PATH, decode_state
from evenkeel_contract.consolestate import (
    HOUR_PATH,
    NOW_PATH,
    PAGE_PATH,
    ConsoleState,
    HourState,
)
from evenkeel_contract.qoeconfig import QoeConfig
from evenkeel_contract.routerconfig import Anonymous, ApiKeyConfig, ClientConfig, TenantConfig
from evenkeel_router.app import Router, running
from evenkeel_router.request.console_page import page_files
from evenkeel_router.telemetry.history import window_between
from evenkeel_router.telemetry.sampler import read

from tests.support.browser import CHROMIUM, NO_CHROMIUM
from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    config_for,
    fleet,
    sha256,
    tenancy,
    until,
)
from tests.support.steps import result_of

TIMING = replace(QUICK, console_tick_s=0.02)
OTHER_KEY = "sk-rival"
RIVAL = TenantConfig(
    namespace="ns",
    name="rival",
    clients=(ClientConfig(name="secret"),),
    api_keys=(ApiKeyConfig(name="k", client="secret", sha256=sha256(OTHER_KEY)),),
)
BOTH = tenancy(tenants=(*tenancy().tenants, RIVAL))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def admin_of(router: Router) -> str:
    return f"http://127.0.0.1:{router.admin_port}"


async def complete(client: httpx.AsyncClient, router: Router, key: str, number: int = 1) -> None:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8}
    for _ in range(number):
        response = await client.post(f"{router.url}/v1/completions", json=body, headers=bearer(key))
        assert response.status_code == 200


async def read_as(client: httpx.AsyncClient, url: str, kind: type[Any], key: str = "") -> Any:
    response = await client.get(url, headers=bearer(key) if key else {})
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    return msgspec.json.decode(response.content, type=kind)


async def sampled(client: httpx.AsyncClient, router: Router, url: str, key: str = "") -> HourState:
    """The hour, once it has samples of a client; requests are sent until then."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await complete(client, router, KEY)
            hour: HourState = await read_as(client, url + HOUR_PATH, HourState, key)
            if len(hour.series) > 1 and len(hour.times_unix_s) > 1:
                return hour


async def test_the_figures_are_those_of_top() -> None:
    async with (
        fleet(2, tenancy=BOTH) as (router, _),
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        fairness = router.rooms.service_ledger.fairness

        async def both() -> tuple[Any, Any]:
            """A reading of each, of one moment: no request runs, and all reports have come."""
            known = fairness.now
            await until(lambda: fairness.now is not known, "figures of fairness")
            response = await client.get(admin_of(router) + STATE_PATH)
            state = decode_state(response.content)
            return state, result_of(read(router.rooms, state.time_s))

        async def settled(requests: int) -> None:
            await until(
                lambda: sum(own.service for own in fairness.now.clients.values()) >= 12 * requests,
                "the service in the ledger",
            )
            await until(
                lambda: (
                    not any(
                        own.running for own in result_of(read(router.rooms, 0.0)).clients.values()
                    )
                ),
                "reports without running requests",
            )

        await complete(client, router, KEY)
        await settled(1)
        state_before, before = await both()
        await complete(client, router, KEY, 3)
        await complete(client, router, OTHER_KEY)
        await settled(5)
        state_now, now = await both()
    view = make_view(state_now, state_before)
    window = result_of(window_between(before, now))
    rows = {f"ns/{row.tenant}/{row.client}": row for row in view.clients}
    assert window.seconds == pytest.approx(view.window_s)
    together = window.rates[""].service_per_s
    assert together > 0
    for identity in ("ns/acme/chat", "ns/rival/secret"):
        own, row = window.rates[identity], rows[identity]
        assert own.service_per_s == pytest.approx(row.service_per_s)
        assert own.service_per_s / together == pytest.approx(row.share)
        assert own.hit_rate == pytest.approx(row.hit_rate)
        assert (own.waiting, own.running) == (row.waiting, row.running)
    for row in view.replicas:
        assert window.replicas[row.name].service_per_s == pytest.approx(row.service_per_s)


async def test_a_tenant_sees_the_quality_of_experience_of_its_own_streams() -> None:
    changes = {"tenancy": BOTH, "qoe": QoeConfig(expected_ttft_s=3600)}
    async with (
        fleet(1, timing=TIMING, **changes) as (router, _),
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        url = router.url + NOW_PATH
        await complete(client, router, OTHER_KEY)
        before = await read_as(client, url, ConsoleState, OTHER_KEY)
        assert [one.qoe for one in before.clients] == [None]
        body = {"model": MODEL, "prompt": "x", "max_tokens": 8, "stream": True}
        known = None
        async with asyncio.timeout(PATIENCE_S):
            while known is None:  # the figure is of a short window here
                await client.post(f"{router.url}/v1/completions", json=body, headers=bearer(KEY))
                state = await read_as(client, url, ConsoleState, KEY)
                known = next(one.qoe for one in state.clients if one.client == "chat")
        assert known == 1.0


async def test_the_admin_port_shows_the_service_behind_its_token() -> None:
    changes = {"tenancy": BOTH, "admin_token_sha256": sha256("right"), "max_lead_s": 60.0}
    async with (
        fleet(2, timing=TIMING, **changes) as (router, _),
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        for headers in ({}, bearer("wrong"), bearer(KEY)):
            for path in (NOW_PATH, HOUR_PATH):
                refused = await client.get(admin_of(router) + path, headers=headers)
                assert refused.status_code == 401
        hour = await sampled(client, router, admin_of(router), "right")
        now = await read_as(client, admin_of(router) + NOW_PATH, ConsoleState, "right")
        of_client = await read_as(
            client, f"{admin_of(router)}{HOUR_PATH}?client=ns%2Facme%2Fchat", HourState, "right"
        )
        unknown = await read_as(
            client, f"{admin_of(router)}{HOUR_PATH}?client=%2F%00", HourState, "right"
        )
    assert (unknown.series, unknown.replicas) == ((), ())
    assert (now.scope, now.fair) == ("service", True)
    assert now.verdict == now.fleet.verdict == "Fair: no client had to wait for another."
    assert {"acme", "rival"} <= {one.tenant for one in now.clients}
    assert {one.name: one.routable for one in now.replicas} == {"r0": True, "r1": True}
    assert not [condition for condition in now.conditions if condition.problem]
    assert "EvenkeelLeadTooLong" in {condition.alert for condition in now.conditions}
    assert [one.identity for one in hour.series[:2]] == ["", "ns/acme/chat"]
    assert [one.identity for one in of_client.series] == ["ns/acme/chat"]
    assert sum(at.service for at in of_client.replicas) > 0
    assert len(of_client.series[0].service_per_s) == len(of_client.times_unix_s)


async def test_a_tenant_sees_its_own_clients_and_nothing_of_others() -> None:
    async with (
        fleet(1, timing=TIMING, tenancy=BOTH) as (router, _),
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        await complete(client, router, OTHER_KEY)
        hour = await sampled(client, router, router.url, KEY)
        counted = [own.requests for own in router.rooms.totals.clients()]
        answers = [
            await client.get(router.url + path, headers=bearer(KEY))
            for path in (
                NOW_PATH,
                HOUR_PATH,
                f"{HOUR_PATH}?client=ns/rival/secret",
                f"{HOUR_PATH}?client=ns/rival",
                f"{HOUR_PATH}?client=",
            )
        ]
        assert [own.requests for own in router.rooms.totals.clients()] == counted
    text = "".join(answer.text for answer in answers)
    assert "acme" in text
    assert "rival" not in text and "secret" not in text and '"r0"' not in text
    now = msgspec.json.decode(answers[0].content, type=ConsoleState)
    assert (now.scope, now.tenant, now.fleet, now.ledger) == ("tenant", "acme", None, None)
    assert {one.client for one in now.clients} == {"chat", "batch"}
    assert [one.identity for one in hour.series] == ["ns/acme", "ns/acme/chat"]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),  # although such a request may use the service
        (bearer("wrong"), "invalid_api_key"),
        ({"x-evenkeel-client": "acme/chat"}, "missing_api_key"),  # from an untrusted peer
    ],
)
async def test_the_traffic_port_shows_nothing_without_a_key(
    headers: dict[str, str], code: str
) -> None:
    async with (
        fleet(1, timing=TIMING, tenancy=tenancy(anonymous=Anonymous.SHARE)) as (router, _),
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        refused = await client.get(router.url + NOW_PATH, headers=headers)
        counted = router.rooms.totals.refused.total()
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, code)
    assert counted == 1


async def test_the_page_is_served_with_a_strict_policy_and_without_a_token() -> None:
    async with (
        fleet(1, admin_token_sha256=sha256("right")) as (router, _),
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        for base in (admin_of(router), router.url):
            for path in page_files():
                answer = await client.get(base + path)
                assert answer.status_code == 200
                policy = answer.headers["content-security-policy"]
                assert "default-src 'none'" in policy and "unsafe" not in policy
                assert answer.headers["x-content-type-options"] == "nosniff"
            assert (await client.get(f"{base}{PAGE_PATH}../v1/state")).status_code in (401, 404)
            assert (await client.get(f"{base}{PAGE_PATH}other.js")).status_code in (401, 404)
        page = await client.get(f"{admin_of(router)}/", follow_redirects=True)
    assert page.url.path == PAGE_PATH


async def test_without_a_token_a_web_page_of_another_name_reads_nothing() -> None:
    async with fleet(1) as (router, _), httpx.AsyncClient(timeout=PATIENCE_S) as client:
        statuses = {
            host: (
                await client.get(admin_of(router) + STATE_PATH, headers={"Host": host})
            ).status_code
            for host in (
                "127.0.0.1:8082",
                "localhost:1",
                "[::1]:8082",
                "rebound.example",
                "127.0.0.1.example",
            )
        }
    assert list(statuses.values()) == [200, 200, 200, 403, 403]


def test_the_page_is_small_and_asks_no_other_origin() -> None:
    files = {path: file.body for path, file in page_files().items() if path != PAGE_PATH}
    assert sum(len(gzip.compress(body)) for body in files.values()) < 60_000
    page = files[f"{PAGE_PATH}index.html"].decode()
    assert not re.search(r"<script>|<style|style=|\son\w+=|//", page)


@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
async def test_a_browser_shows_the_clients(tmp_path: Path) -> None:
    """`make test-console` has the other tests in a browser."""
    async with (
        fleet(1, timing=TIMING, tenancy=BOTH) as (router, _),
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        await complete(client, router, KEY)
        process = await asyncio.create_subprocess_exec(
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--virtual-time-budget=3000", f"--user-data-dir={tmp_path}"),
            admin_of(router) + PAGE_PATH,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    text = output.decode()
    assert "Fair: no client had to wait for another." in text
    assert "acme/chat" in text and "rival/secret" in text


async def test_requests_that_no_replica_takes_wait_at_the_console_too() -> None:
    async with (
        running(config_for(tenancy=BOTH), timing=TIMING) as router,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        sending = asyncio.create_task(complete(client, router, KEY))
        async with asyncio.timeout(PATIENCE_S):
            while True:
                now = await read_as(client, admin_of(router) + NOW_PATH, ConsoleState)
                if now.total.waiting:
                    break
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    (chat,) = (one for one in now.clients if one.client == "chat")
    assert (chat.waiting, chat.held, now.held, now.waiting) == (1, 1, 1, 1)
    assert now.verdict.startswith("No client is served: there is no replica; 1 request waits")


async def test_an_outage_links_runbooks_that_the_admin_port_shows(tmp_path: Path) -> None:
    (tmp_path / "replicas-missing.md").write_text("# How to repair it\n")
    (tmp_path.parent / "other.md").write_text("not a runbook\n")
    config = config_for(runbooks=f"file://localhost{quote(str(tmp_path))}")
    async with (
        running(config, timing=QUICK) as router,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.admin_port}") as client,
    ):
        conditions = (await client.get(NOW_PATH)).json()["conditions"]
        linked = {one["alert"]: one["runbook"] for one in conditions if one["problem"]}
        page = await client.get(linked["EvenkeelReplicasMissing"])
        assert (page.status_code, page.text) == (200, "# How to repair it\n")
        assert page.headers["content-type"] == "text/plain; charset=utf-8"
        for path in ("/runbooks/none.md", "/runbooks/..%2Fother.md", "/runbooks/replicas-missing"):
            assert (await client.get(path)).status_code == 404
    async with (
        running(config_for(runbooks="https://wiki.example"), timing=QUICK) as router,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.admin_port}") as client,
    ):
        assert (await client.get("/runbooks/replicas-missing.md")).status_code == 404
