"""What probes and failed requests make of a replica."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS, LARGEST_QUANTUM
from evenkeel_router.app import Router, running
from evenkeel_router.fleet.health import SILENT_PROBES, HealthMonitor
from evenkeel_router.fleet.probe import EngineSize, HttpProber, ProbeVerdict, prober_session
from evenkeel_simulator.server.app import running_server

from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, replicas
from tests.support.nasty import fine, nasty
from tests.support.plain_engine import plain_engine
from tests.support.router_rooms import rooms_of
from tests.support.routers import QUICK, applied, config_for, replica_of, routable, simulated, until


@asynccontextmanager
async def watched(prober: FakeProber) -> AsyncIterator[Router]:
    upstream = FakeUpstream(lambda *_: FakeReply([]))
    config = config_for(*replicas(1))
    async with running(config, upstream=upstream, prober=prober, timing=QUICK) as router:
        yield router


async def test_a_replica_joins_when_it_is_ready_and_is_lost_when_it_is_gone() -> None:
    prober = FakeProber({"r0": ProbeVerdict.NOT_READY})
    async with watched(prober) as router:
        member = router.rooms.replicas.fleet.member("r0")
        assert member is not None
        assert not member.joined
        await until(lambda: member.loads, "an answer")
        assert router.rooms.replicas.fleet.why_unroutable().endswith("can take requests: 1 loading")
        prober.verdicts["r0"] = ProbeVerdict.READY
        await routable(router, 1)
        assert not member.loads
        prober.verdicts["r0"] = ProbeVerdict.NOT_READY
        await routable(router, 0)
        assert member.joined  # draining, say: its cache still counts
        assert not member.loads
        prober.verdicts["r0"] = ProbeVerdict.GONE
        await until(lambda: not member.joined, "it to be lost")
        prober.verdicts["r0"] = ProbeVerdict.READY
        await routable(router, 1)
        assert member.lives == 2


async def test_the_totals_of_a_replica_end_with_its_configuration() -> None:
    async with watched(FakeProber({"r0": ProbeVerdict.READY})) as router:
        await routable(router, 1)
        found = router.rooms.replicas
        found.totals["r0"].requests = 5
        found.remove("r0")
        assert "r0" not in found.totals
        found.configured["r0"] = replicas(1)[0]  # the end of the router removes it, too


async def test_it_is_said_once_that_nothing_is_routable_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    prober = FakeProber({"r0": ProbeVerdict.READY})
    with caplog.at_level(logging.INFO, "evenkeel_router.fleet.health"):
        async with watched(prober) as router:
            await routable(router, 1)
            for verdict, word in (
                (ProbeVerdict.NOT_READY, "not ready"),
                (ProbeVerdict.GONE, "unreachable"),
            ):
                prober.verdicts["r0"] = verdict
                await routable(router, 0)
                await until(lambda: word in router.rooms.replicas.fleet.why_unroutable(), word)  # noqa: B023
            prober.verdicts["r0"] = ProbeVerdict.READY
            await routable(router, 1)
            await until(lambda: "can take requests again" in caplog.text, "it to be said")
    said = [line for line in caplog.messages if "can take requests" in line]
    assert said == [
        "0 of 1 replicas can take requests: 1 not ready. Requests wait up to 120 s and then get 503.",
        "replicas can take requests again",
    ]


async def test_an_empty_fleet_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with running(config_for(), timing=QUICK):
        await until(lambda: "the service has no replicas" in caplog.text, "it")


async def test_silence_counts_only_when_it_lasts() -> None:
    silences = 0

    class Silent(FakeProber):
        async def probe(self, replica: object) -> ProbeVerdict:
            nonlocal silences
            silences += 1
            return ProbeVerdict.READY if silences == 1 else ProbeVerdict.SILENT

    async with watched(Silent()) as router:
        await routable(router, 1)
        await routable(router, 0)
        assert silences >= 1 + SILENT_PROBES


async def test_probes_tell_ready_not_ready_and_gone_apart() -> None:
    async with prober_session() as session, nasty(fine) as replica:
        prober = HttpProber(session)
        config = replica.config("r0")
        assert await prober.probe(config) is ProbeVerdict.READY
        replica.ready = False
        assert await prober.probe(config) is ProbeVerdict.NOT_READY
        assert prober.refusal(config) == ""
        assert await prober.probe(replicas(1)[0]) is ProbeVerdict.GONE


@pytest.mark.parametrize("missing", [(), ("/ready",), ("/ready", "/health")])
async def test_readiness_is_asked_at_the_first_path_that_an_engine_has(
    missing: tuple[str, ...],
) -> None:
    settings = simulated(reports_port=None)
    async with prober_session() as session, plain_engine(settings, missing=missing) as engine:
        prober, replica = HttpProber(session), engine.config("r0")
        assert await prober.probe(replica) is ProbeVerdict.READY
        asked = engine.asked.copy()
        assert await prober.probe(replica) is ProbeVerdict.READY
        assert engine.asked[len(asked) :] == asked[-1:]  # it is remembered
        assert prober.refusal(replica) == ""
        engine.failing = True
        assert await prober.probe(replica) is ProbeVerdict.NOT_READY
        assert prober.refusal(replica) == ""
        engine.failing_status = 500
        assert await prober.probe(replica) is ProbeVerdict.NOT_READY
        assert prober.refusal(replica) == "its health check answers 500"
        engine.failing = False
        assert await prober.probe(replica) is ProbeVerdict.READY
        assert prober.refusal(replica) == ""


async def test_an_engine_without_any_readiness_path_is_not_ready() -> None:
    missing = ("/ready", "/health", "/v1/models")
    settings = simulated(reports_port=None)
    async with prober_session() as session, plain_engine(settings, missing=missing) as engine:
        assert await HttpProber(session).probe(engine.config("r0")) is ProbeVerdict.NOT_READY


async def test_the_start_time_of_a_process_is_read_from_its_metrics() -> None:
    settings = simulated(reports_port=None)
    async with prober_session() as session:
        prober = HttpProber(session)
        async with plain_engine(settings) as engine:
            replica = engine.config("r0")
            assert await prober.started_s(replica) is None  # as with SGLang
            engine.started_s = 1763881478.25
            assert await prober.started_s(replica) == 1763881478.25
        assert await prober.started_s(replica) is None


@pytest.mark.parametrize(("started_s", "want_lives"), [(2000.0, 2), (1000.0, 1), (None, 1)])
async def test_a_replica_without_reports_but_another_start_time_is_another_process(
    started_s: float | None, want_lives: int
) -> None:
    prober = FakeProber(started={"r0": 1000.0})
    async with watched(prober) as router:
        await routable(router, 1)
        await until(lambda: prober.asked_start == 1, "its start time to be asked")
        prober.verdicts["r0"] = ProbeVerdict.NOT_READY
        await routable(router, 0)
        prober.started = {} if started_s is None else {"r0": started_s}
        prober.verdicts["r0"] = ProbeVerdict.READY
        await routable(router, 1)
        member = router.rooms.replicas.fleet.member("r0")
        assert member is not None
        assert member.lives == want_lives


async def test_reports_of_an_unknown_replica_are_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with watched(FakeProber()) as router:
        await routable(router, 1)
        lives = [member.lives for member in router.rooms.replicas.fleet]
        rooms = router.rooms
        tower = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, FakeProber())
        for tell in (tower.lost, tower.broken):
            tell("nobody", "why")
        tower.replaced("nobody")
        assert [member.lives for member in router.rooms.replicas.fleet] == lives
        assert router.rooms.replicas.fleet.routable.bit_count() == 1
        assert router.rooms.replicas.fleet.member("nobody") is None
        assert "nobody" not in caplog.text


async def test_the_largest_replica_says_how_much_a_client_can_owe() -> None:
    prober = FakeProber(sizes={"r0": EngineSize(max_total_num_tokens=1000, context_length=300)})
    async with watched(prober) as router:
        await routable(router, 1)
        await until(
            lambda: router.rooms.service_ledger.ledger.rules.overshoot == 300 + 2 * 1000,
            "U of the replica",
        )
        router.rooms.service_ledger.replica_is_of_size(max_input_tokens=10, pool_tokens=10)
        assert router.rooms.service_ledger.ledger.rules.overshoot == 2300
        scheduling = replace(router.rooms.settings.config.scheduling, max_debt=77)
        applied(router.rooms, replace(router.rooms.settings.config, scheduling=scheduling))
        assert router.rooms.service_ledger.ledger.rules.overshoot == 77
        # The replicas measure their quantum: the router takes the largest one.
        assert (
            router.rooms.service_ledger.ledger.rules.max_debt(2.0)
            == 77 + DEFERRED_REFILLS * LARGEST_QUANTUM * 2
        )
        router.rooms.service_ledger.replica_has_quantum(1000.5)
        assert router.rooms.service_ledger.ledger.rules.quantum == 1001
        router.rooms.service_ledger.replica_has_quantum(300.0)  # the bounds keep the largest one
        assert router.rooms.service_ledger.ledger.rules.quantum == 1001
        router.rooms.service_ledger.replica_has_quantum(0.0)  # an older replica
        assert router.rooms.service_ledger.ledger.rules.quantum == LARGEST_QUANTUM
        scheduling = replace(scheduling, client_quantum=50)
        applied(router.rooms, replace(router.rooms.settings.config, scheduling=scheduling))
        assert (
            router.rooms.service_ledger.ledger.rules.max_debt(2.0) == 77 + DEFERRED_REFILLS * 50 * 2
        )


async def test_sizes_are_read_off_what_sglang_says_and_nonsense_is_no_size() -> None:
    async with prober_session() as session, running_server(simulated(kv_tokens=4096)) as server:
        size = await HttpProber(session).size(replica_of(server))
        assert size is not None
        assert (size.max_total_num_tokens, size.max_input_tokens) == (4096, 4096)
    async with prober_session() as session, nasty(fine) as replica:
        assert await HttpProber(session).size(replica.config("r0")) is None
        assert await HttpProber(session).size(replicas(1)[0]) is None


async def test_the_largest_quantum_bounds_debts_and_an_unknown_one_is_the_largest() -> None:
    ledger = rooms_of().service_ledger
    for reported, want in (
        (50.0, 50.0),
        (20.0, 50.0),
        (0.0, LARGEST_QUANTUM),
        (70.0, LARGEST_QUANTUM),
    ):
        ledger.replica_has_quantum(reported)
        assert ledger.ledger.rules.quantum == want
