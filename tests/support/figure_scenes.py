"""A router's memory with all that its figures show: tenants, capped clients, reports, gates, a replica that has left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.recordingconfig import RecordingConfig
from evenkeel_contract.reports import ClientReport
from evenkeel_contract.routerconfig import (
    Anonymous,
    ClientConfig,
    ReplicaConfig,
    SchedulingConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_fairshare.fleet.contract import EMPTY, Usage
from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.identity import Client, Paid, client_of
from evenkeel_router.fleet.prediction import Basis
from evenkeel_router.fleet.replicas import ReplicaReport
from evenkeel_router.fleet.selection import Ticket
from evenkeel_router.ledger.contacts import Peer, PeerContact
from evenkeel_router.ledger.endings import ANSWERED, GIVEN_UP
from evenkeel_router.ledger.fairness import Fairness
from evenkeel_router.ledger.totals import ReplicaTotals, RequestTotals
from evenkeel_router.prefix.kv_follower import Follower
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.routers import config_for
from tests.unit.evenkeel_router.test_kv_pages import NoView

ACME: Final = TenantConfig(
    namespace="ns",
    name="acme",
    weight=2,
    clients=(ClientConfig(name="chat", weight=3), ClientConfig(name="batch")),
)
BIG: Final = TenantConfig(namespace="ns", name="big corp", default_client_weight=2)
GONE: Final = TenantConfig(namespace="ns", name="gone")
"""Not configured: another router served it."""
CHAT, BATCH = client_of(ACME, "chat"), client_of(ACME, "batch")
ODD, LATE, LAST = client_of(BIG, 'a"b/c'), client_of(BIG, "late"), client_of(BIG, "last")
AWAY = client_of(GONE, "away")
MAX_SHOWN: Final = 3
NAMES: Final = ("r0", "r1", "r2", "r3")
"""The first two report; the third has a gate; the last one is not reached."""


def scene(folder: Path) -> Rooms:
    """The memory before the first request. `folder`: for a recording."""
    configured = tuple(
        ReplicaConfig(name=name, url=f"http://127.0.0.1:{n + 1}") for n, name in enumerate(NAMES)
    )
    config = config_for(
        *configured,
        tenancy=TenancyConfig(anonymous=Anonymous.SHARE, tenants=(ACME, BIG)),
        scheduling=SchedulingConfig(queue=QueueOwner.AUTO, client_quantum=100),
        max_lead_s=60.0,
        max_share_error_percent=15,
        recording=RecordingConfig(file=str(folder / "recording")),
    )
    rooms = Rooms.make(config, incarnation="router-1")
    ledger, fleet = rooms.service_ledger, rooms.replicas.fleet
    rooms.totals = RequestTotals(ledger.accounting.cost, max_clients=MAX_SHOWN, max_tenants=1)
    ledger.fairness = Fairness(ledger.ledger, max_clients=MAX_SHOWN)
    ledger.ledger.members = frozenset({"router-1"})
    rooms.replicas.configured = {replica.name: replica for replica in configured}
    for name in NAMES:
        member = fleet.add(name)
        if name != NAMES[-1]:
            fleet.ready(member)
    for name in NAMES[:2]:
        ledger.accounting.meets(name, f"process-{name}", policy="DLPM", now_s=0.0)
        rooms.replicas.reports[name] = ReplicaReport(
            incarnation=f"process-{name}",
            policy="DLPM",
            sequence=7,
            received_s=1.0,
            counted=True,
            quantum=100.0,
        )
    ledger.accounting.meets_unreported("r2", 0.0)
    draining = fleet.member("r1")
    assert draining is not None
    draining.unschedulable = "draining"
    peer = Peer("other", "http://127.0.0.1:9")
    ledger.peer_contacts[peer] = PeerContact(
        0.0, "router-2", answered_s=2.0, error="it answered 401"
    )
    rooms.prefixes.followers["r0"] = Follower(NoView())
    rooms.settings.faults = ("limits.x: unknown field",)
    rooms.intake.draining = True
    return rooms


def grown(rooms: Rooms, times: int) -> None:
    """The same traffic so many times, then figures of fairness: chat is served more than its share, and batch waits."""
    totals = rooms.totals
    for n, client in enumerate((CHAT, BATCH, ODD, LATE, LAST)):
        _served(rooms, client, Usage(100 + n, 40, 10 * (n + 1)), times)
    for name, chat, batch in (("r0", 300, 60), ("r1", 150, 20)):
        clients = {CHAT: chat * times, BATCH: batch * times, ODD: 30 * times}
        _report(rooms, name, clients, times)
    if times == 1:  # a replica that left: nothing is added
        rooms.service_ledger.ledger.received("process-gone", AWAY.identity, 77.0)
        rooms.service_ledger.ledger.received("process-gone", LATE.identity, 11.0)
    rooms.service_ledger.ledger.closed("process-gone")
    totals.refused[Outcome.UNAUTHENTICATED] = 2 * times
    totals.faults = times
    totals.stripped["priority"] = times
    totals.predicted(Basis.TEXT, 100, 90 + times)
    totals.within_share_ttft_s.new.append(0.25)
    ledger = rooms.service_ledger
    for _ in ledger.fairness.steps(ledger.current(10.0 * times), ledger.weights, 10.0 * times):
        pass


def _served(rooms: Rooms, client: Client, usage: Usage, times: int) -> None:
    own = rooms.totals.of(client)
    own.requests += 3
    own.retries += 1
    own.relocations += client is CHAT
    own.in_flight = 2 if client is CHAT else 0
    own.errors[Outcome.RATE_LIMITED] += 1
    own.ended(2.0, 0.25 * times)
    own.streamed(0.9, 10)
    own.experienced(0.5)
    at: ReplicaTotals = rooms.replicas.totals["r0"]
    at.requests += 1
    rooms.totals.settle(own, at, usage)


def _report(rooms: Rooms, name: str, clients: dict[Client, int], times: int) -> None:
    reports = [
        ClientReport(
            client.identity,
            extend_tokens=0,
            cached_tokens=0,
            output_tokens=0,
            service=float(service),
            normalised=service / client.client_weight,
            tenant_normalised=0.0,
            requests=2 * times,
            deficit=-float(service) / 8,
            tenant_deficit=12.0,
            waiting=0 if client is ODD else 2,
            running=1,
            itl_tokens=90 * times,
            itl_s=4.5 * times,
        )
        for client, service in clients.items()
    ]
    incarnation = f"process-{name}"
    rooms.service_ledger.accounting.observe(
        incarnation,
        reports,
        policy="DLPM",
        sequence=times,
        since=int(rooms.service_ledger.ledger.sequence(incarnation)),
    )


def waiting_at_gate(rooms: Rooms) -> None:
    """Requests of a client without figures of its own wait at the gate of a replica; needs a running loop."""
    fleet = rooms.replicas.fleet
    member = fleet.member("r2")
    assert member is not None and member.slot is not None
    plan = fleet.match(LAST.identity, weight=1.0, text=b"x" * 600, input_tokens=150)
    ticket = fleet.select(plan, EMPTY)
    assert ticket is not None
    at_gate = Ticket(member, member.slot, ticket.life, ticket.match, ticket.prediction)
    for _ in range(12):
        rooms.gates.enter(at_gate, LAST, streams=True, max_output_tokens=64, paid=Paid())
    _in_flight(rooms, at_gate)


def _in_flight(rooms: Rooms, at_gate: Ticket) -> None:
    """Requests of this router at 20 s: held, at the gate, at a replica without and with the first content; and some that are over."""
    for n, facts in enumerate(
        (
            {"holding_since_s": 15.0},
            {"ticket": at_gate, "gate_since_s": 16.0},
            {"replica": "r0", "sent_s": 17.0},
            {"replica": "r0", "sent_s": 12.0, "first_byte_s": 13.0},
        )
    ):
        one = RequestState(f"open-{n}", "/v1/completions", 12.0 + n, client=CHAT, **facts)
        rooms.intake.active_requests.add(one)
    own = rooms.totals.of(CHAT)
    for ending in (ANSWERED, ANSWERED, GIVEN_UP, Outcome.TIMEOUT.value, Outcome.RATE_LIMITED.value):
        own.ended_as(ending, 19.0)


CLOCKS: Final = frozenset(
    {"uptime_s", "time_unix_s", "times_unix_s", "started_unix", "answer_age_s", "report_age_s"}
)
"""Fields whose values are times of clocks."""
_CLOCK: Final = re.compile(r"evenkeel_router_(loop_cpu_seconds_total|ledger_\w+_age_seconds)")
_SERIES: Final = re.compile(r"^(evenkeel_.*) (\S+)$")


def settled(value: Any) -> Any:
    """A JSON value without what differs from run to run: times of clocks, the last digits of sums, the order of clients."""
    if isinstance(value, dict):
        return {
            name: "clock" if name in CLOCKS and one is not None else settled(one)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return sorted((settled(one) for one in value), key=_client)
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _client(value: Any) -> str:
    """What clients are sorted by; other lists keep their order."""
    if not isinstance(value, dict):
        return ""
    return str(value.get("identity") or (value.get("tenant", ""), value.get("client", "")))


def settled_lines(text: str) -> str:
    """As `settled`, for a scrape: metrics by their names, and their series by labels."""
    families = sorted(
        sorted(_SERIES.sub(_rounded, line) for line in family.splitlines())
        for family in re.split(r"(?=# HELP)", text)
    )
    return "".join(f"{line}\n" for family in families for line in family)


def _rounded(found: re.Match[str]) -> str:
    clock = _CLOCK.match(found[1])
    return f"{found[1]} {'clock' if clock else f'{float(found[2]):.9g}'}"


def pretty(body: bytes) -> str:
    """JSON, a field a line."""
    return (
        json.dumps(settled(json.loads(body)), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    )
