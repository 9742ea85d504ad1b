"""Reports of replicas, over real ZeroMQ sockets: what is merged, what is refused, what a restart looks like."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.reports import ClientReport
from evenkeel_fairshare.verdict import RunRecord, judge
from evenkeel_router.app import running
from evenkeel_router.fleet import reports, unnamed
from evenkeel_router.telemetry.snapshot import Seen, router_state

from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, replicas
from tests.support.reporting import report, reporter
from tests.support.routers import QUICK, config_for, routable, until
from tests.support.steps import result_of


def client(name: str, service: float) -> ClientReport:
    return ClientReport(name, 1, 2, 3, service, service, service, 4, -5.0, -6.0, 7, 8)


async def test_reports_are_merged_asked_on_from_and_shown() -> None:
    async with reporter() as told:
        (one,) = replicas(1)
        config = config_for(replace(one, reports=told.address))
        upstream = FakeUpstream(lambda *_: FakeReply([]))
        async with running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router:
            seen, ledger = router.rooms.replicas.reports, router.rooms.service_ledger.ledger
            told.answer = report("first", 5, 0, client("ns/acme/chat", 10.0))
            await routable(router, 1)
            told.answer = report("first", 6, 5, client("ns/acme/batch", 1.0))
            await until(lambda: len(ledger.clients()) == 2, "what changed since")
            await until(lambda: told.questions[-1].since == 6, "the next question")
            assert told.questions[-1].incarnation == "first"
            told.answer = b"garbage"
            before = len(told.questions)
            await until(lambda: len(told.questions) > before + 1, "it to be asked again")
            assert seen["r0"].sequence == 6

            now_s = asyncio.get_running_loop().time()
            state = decode_state(
                result_of(router_state(router.rooms, now_s, Seen(judge(RunRecord()))))
            )
            (shown,) = state.replicas
            assert (shown.incarnation, shown.policy) == ("first", "DLPM")
            assert (shown.waiting, shown.running) == (14, 16)
            assert shown.report_age_s is not None
            (acme,) = state.tenants
            (at,) = {c.name: c for c in acme.clients}["chat"].replicas
            assert (at.deficit, at.tenant_deficit, at.service) == (-5.0, -6.0, 10.0)


async def test_after_a_silence_all_rows_of_a_replica_are_asked_for_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "FORGETFUL_S", 0.5)
    async with reporter() as told:
        (one,) = replicas(1)
        config = config_for(replace(one, reports=told.address))
        upstream = FakeUpstream(lambda *_: FakeReply([]))
        async with running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router:
            ledger = router.rooms.service_ledger.ledger
            told.answer = report("first", 5, 0, client("ns/acme/chat", 10.0))
            await routable(router, 1)
            await until(lambda: ledger.served("ns/acme/chat") == 10.0, "the row")
            told.answer = b""  # no answer
            await asyncio.sleep(1.0)
            # Meanwhile the replica gave the row back, and removed its mark.
            told.answer = report("first", 9, 5, client("ns/acme/*", 10.0))
            await until(lambda: told.questions[-1].since == 0, "a question for all rows")
            counted = [ledger.served(f"ns/acme/{name}") for name in ("chat", "*")]
            assert counted == [10.0, 0.0], "once, by the name that is known"
            told.answer = report("first", 9, 0, client("ns/acme/*", 10.0))
            await until(lambda: ledger.served("ns/acme/*") == 10.0, "the rest row")
            assert ledger.served("ns/acme/chat") == 0.0


async def test_a_share_of_requests_without_client_keys_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unnamed, "WINDOW_S", 0.0)
    async with reporter() as told:
        (one,) = replicas(1)
        config = config_for(replace(one, reports=told.address))
        upstream = FakeUpstream(lambda *_: FakeReply([]))
        async with running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router:
            told.answer = report("first", 5, 0, requests=1000, unnamed=900)
            await routable(router, 1)

            def share() -> float:
                (shown,) = decode_state(
                    result_of(router_state(router.rooms, 0.0, Seen(judge(RunRecord()))))
                ).replicas
                return shown.unnamed_share

            assert share() == 0, "what came before this router says nothing of now"
            told.answer = report("first", 5, 5, requests=1100, unnamed=905)
            await until(lambda: share() == 0.05, "the share")


async def test_a_report_of_another_process_means_that_the_replica_was_restarted() -> None:
    async with reporter() as told:
        (one,) = replicas(1)
        config = config_for(replace(one, reports=told.address))
        upstream = FakeUpstream(lambda *_: FakeReply([]))
        told.answer = report("first", 5, 0, client("a", 1.0))
        async with running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router:
            await until(lambda: "r0" in router.rooms.replicas.reports, "the first report")
            await routable(router, 1)
            member = router.rooms.replicas.fleet.member("r0")
            assert member is not None
            assert member.lives == 1
            told.answer = report("second", 1, 0)
            await until(lambda: member.lives == 2, "it to have been lost and to have joined again")
            await until(
                lambda: router.rooms.replicas.reports["r0"].incarnation == "second", "its report"
            )
            assert not list(router.rooms.service_ledger.ledger.replica_accounts["second"].names())


async def test_a_replica_that_is_no_longer_configured_is_no_longer_asked_or_shown() -> None:
    async with reporter() as told:
        told.answer = report("first", 5, 0)
        (one,) = replicas(1)
        upstream = FakeUpstream(lambda *_: FakeReply([]))
        async with running(
            config_for(replace(one, reports=told.address)),
            upstream=upstream,
            prober=FakeProber(),
            timing=QUICK,
        ) as router:
            await until(lambda: "r0" in router.rooms.replicas.reports, "a report")
            router.services.only.discovery.update(config_for())
            await until(lambda: not router.rooms.replicas.reports, "its report to be forgotten")
            assert not list(router.rooms.replicas.fleet)
            assert not router.rooms.replicas.totals
