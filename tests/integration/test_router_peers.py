"""Several routers: what one knows, all know; who joins late or starts anew catches up; who has no token does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from aiohttp import web
from evenkeel_contract.ledgerwire import LEDGER_PATH, encode
from evenkeel_contract.routerconfig import PeerConfig, ReplicaConfig, StateConfig
from evenkeel_fairshare.ledger import NO_VERSIONS, ReplicaRow
from evenkeel_fairshare.ledger.replica_rows import REQUESTS, RUNNING
from evenkeel_router.app import Router, running
from evenkeel_simulator.server.app import running_server

from tests.support.ledger_worlds import content
from tests.support.routers import (
    KEY,
    MODEL,
    PATIENCE_S,
    QUICK,
    applied,
    config_for,
    replica_of,
    routable,
    sha256,
    simulated,
    until,
)

CHAT = "ns/acme/chat"
TIMING = replace(QUICK, settle_s=0.1, return_s=0.1, compact_interval_s=0.2)


def peer(of: Router, name: str = "peer") -> PeerConfig:
    return PeerConfig(name=name, url=f"http://127.0.0.1:{of.admin_port}")


def state(*peers: PeerConfig, token: str | None = None) -> StateConfig:
    return StateConfig(peers=peers, peer_token=token, exchange_interval_s=0.05)


def introduce(router: Router, *peers: PeerConfig) -> None:
    config = router.rooms.settings.config
    token = config.state.peer_token
    applied(router.rooms, replace(config, state=state(*peers, token=token)))


@asynccontextmanager
async def pair(*replicas: ReplicaConfig, **changes: object) -> AsyncIterator[tuple[Router, Router]]:
    """Two routers of the same replicas that know each other."""
    config = config_for(*replicas, **({"state": state()} | changes))
    async with running(config, timing=TIMING) as one, running(config, timing=TIMING) as two:
        introduce(one, peer(two))
        introduce(two, peer(one))
        for router in (one, two):
            await routable(router, len(replicas))
        yield one, two


async def ask(router: Router, *, prompt: str = "x", tokens: int = 40) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(timeout=PATIENCE_S, headers=headers) as client:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        response = await client.post(f"{router.url}/v1/completions", json=body)
        assert response.status_code == 200, response.text


def agree(*routers: Router) -> bool:
    first, *others = [
        content(router.rooms.service_ledger.ledger) | {"adopted": 0} for router in routers
    ]
    return all(other == first for other in others)


def settled(*routers: Router) -> bool:
    """Whether all know the same, and the last report says that nothing runs: one may come in the middle of it."""
    pages = [
        page
        for router in routers
        for page in router.rooms.service_ledger.ledger.replica_accounts.values()
    ]
    return agree(*routers) and not any(page.clients.cell(CHAT, RUNNING) for page in pages)


def requests_at(router: Router) -> float:
    """Requests of the client that replicas admitted, by a router's ledger."""
    pages = router.rooms.service_ledger.ledger.replica_accounts.values()
    return sum(page.clients.cell(CHAT, REQUESTS) for page in pages)


async def test_two_routers_agree_wherever_requests_arrive() -> None:
    async with running_server(simulated()) as server, pair(replica_of(server)) as (one, two):
        for n in range(3):
            await ask(one, prompt=f"prompt {n}")
        await until(lambda: settled(one, two) and requests_at(two) == 3, "both to know all of it")
        served = one.rooms.service_ledger.ledger.served(CHAT)
        assert served == two.rooms.service_ledger.ledger.served(CHAT)
        assert {
            name: len(page.accounts)
            for name, page in two.rooms.service_ledger.ledger.replica_accounts.items()
        } == {one.rooms.service_ledger.accounting.incarnation("r0"): 1}


async def test_both_routers_close_and_compact_a_gone_replica_and_count_it_once() -> None:
    async with AsyncExitStack() as stack:
        gone = await stack.enter_async_context(running_server(simulated()))
        stays = await stack.enter_async_context(running_server(simulated()))
        replicas = (replica_of(gone, "gone"), replica_of(stays, "stays"))
        one, two = await stack.enter_async_context(pair(*replicas))
        for n, router in enumerate((one, two, one, two, two)):
            await ask(router, prompt=f"prompt {n}")
        # Before the first report both know the same, too.
        await until(lambda: settled(one, two) and requests_at(one) == 5, "both to know all of it")
        served = one.rooms.service_ledger.ledger.served(CHAT)
        for router in (one, two):
            router.services.only.discovery.update(config_for(replicas[1]))
        await until(
            lambda: (
                len(one.rooms.service_ledger.ledger.replica_accounts)
                == len(two.rooms.service_ledger.ledger.replica_accounts)
                == 1
            ),
            "the page to be folded and forgotten by both",
        )
        await until(
            lambda: (
                one.rooms.service_ledger.ledger.closed_totals.rank
                == two.rooms.service_ledger.ledger.closed_totals.rank
            ),
            "one book for both",
        )
        assert (
            one.rooms.service_ledger.ledger.served(CHAT)
            == two.rooms.service_ledger.ledger.served(CHAT)
            == served
        )


async def test_a_router_that_starts_anew_knows_from_its_peer_what_it_knew() -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(simulated()))
        config = config_for(replica_of(server), state=state())
        stays = await stack.enter_async_context(running(config, timing=TIMING))
        known = replace(config, state=state(peer(stays)))
        async with running(known, timing=TIMING) as first:
            introduce(stays, peer(first))
            await routable(first, 1)
            await ask(first)
            await until(lambda: settled(first, stays), "news of it")
            served = first.rooms.service_ledger.ledger.served(CHAT)
        async with running(known, timing=TIMING) as second:
            # Before its first request, and without having asked the replica anything.
            assert second.rooms.service_ledger.ledger.served(CHAT) == served
            introduce(stays, peer(second))
            await routable(second, 1)
            await ask(second, prompt="another")
            await until(lambda: requests_at(stays) == 2, "news again")
            members = frozenset(
                (
                    stays.rooms.service_ledger.ledger.router,
                    second.rooms.service_ledger.ledger.router,
                )
            )
            await until(
                lambda: (
                    stays.rooms.service_ledger.ledger.members
                    == second.rooms.service_ledger.ledger.members
                    == members
                ),
                "both to know who is who",
            )


async def test_a_peer_that_never_answered_stops_folding_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nobody = PeerConfig(name="nobody", url="http://127.0.0.1:1")
    async with running_server(simulated()) as server:
        config = config_for(replica_of(server), state=state(nobody))
        async with running(config, timing=TIMING) as router:
            await routable(router, 1)
            await ask(router)
            router.rooms.service_ledger.ledger.observe(
                "departed", since=0, sequence=1, rows=[ReplicaRow(CHAT, service=1.0)]
            )
            await until(
                lambda: "does not send its part of the ledger" in caplog.text, "the warning"
            )
            await ask(router, prompt="another")
            assert not router.rooms.service_ledger.ledger.replica_accounts["departed"].closed_by
            introduce(router)  # it was taken off the list
            await until(
                lambda: "departed" not in router.rooms.service_ledger.ledger.replica_accounts,
                "the page to be gone",
            )
            assert router.rooms.service_ledger.ledger.closed_totals.client(CHAT).service == 1.0


async def test_a_router_on_its_own_list_is_no_peer() -> None:
    async with running(config_for(state=state()), timing=TIMING) as router:
        introduce(router, peer(router))
        only = frozenset((router.rooms.service_ledger.ledger.router,))
        await until(
            lambda: router.rooms.service_ledger.ledger.members == only, "itself to be recognised"
        )


async def test_only_a_peer_with_the_token_gets_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(admin_token_sha256=sha256("secret"), state=state(token="secret")) as (one, two):
        one.rooms.service_ledger.ledger.observe(
            "r", since=0, sequence=1, rows=[ReplicaRow(CHAT, service=1.0)]
        )
        await until(lambda: two.rooms.service_ledger.ledger.served(CHAT) == 1.0, "the exchange")
        question = encode(NO_VERSIONS)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{one.admin_port}") as client:
            refused = await client.post(LEDGER_PATH, content=question)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                401,
                "invalid_admin_token",
            )
            auth = {"Authorization": "Bearer secret"}
            told = await client.post(LEDGER_PATH, content=question, headers=auth)
            assert told.status_code == 200
            for bad in (b"", b"garbage", question[:-1]):
                answer = await client.post(LEDGER_PATH, content=bad, headers=auth)
                assert (answer.status_code, answer.json()["error"]["code"]) == (
                    400,
                    "invalid_digest",
                )
        config = one.rooms.settings.config
        applied(one.rooms, replace(config, state=state(*config.state.peers, token="wrong")))
        await until(lambda: "it answered 401" in caplog.text, "the warning")


async def test_peers_that_answer_nonsense_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    answers = [b"\x05\x00\x00\x00\x01oops", b"\xff\xff\xff\xff", b"\x00", b"\x09\x00\x00\x00cut"]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=answers.pop(0) if answers else b"\xff" * 8)

    app = web.Application()
    app.router.add_post(LEDGER_PATH, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        bad = PeerConfig(name="bad", url=f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with running(config_for(state=state(bad)), timing=TIMING) as router:
            await until(lambda: not answers, "all of it to be tried")
            assert "does not send its part of the ledger" in caplog.text
            assert not router.rooms.service_ledger.ledger.replica_accounts
    finally:
        await runner.cleanup()
