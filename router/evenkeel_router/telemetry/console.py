"""What the console shows (docs/how-to/console.md), built in steps: requests are served between two steps (`slices.py`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Final, NamedTuple

import msgspec
from evenkeel_contract import consolestate
from evenkeel_contract.consolestate import AtReplica
from evenkeel_contract.figures import Figures, mean
from evenkeel_fairshare.client_verdict import ClientRecord, judge_client
from evenkeel_fairshare.ledger import tenant_of
from evenkeel_fairshare.tenancy import shares
from evenkeel_fairshare.verdict import AS_OWED, LEAST_SURPLUS, Judgement, Level

from evenkeel_router.api.identity import names_of
from evenkeel_router.ledger.clients import ClientFigures, client_figures
from evenkeel_router.request.console_page import page_files
from evenkeel_router.request.tenant_console import Asked
from evenkeel_router.slices import in_slices
from evenkeel_router.telemetry.conditions import conditions
from evenkeel_router.telemetry.history import NOTHING, STRIDE, WHOLE_SERVICE, History
from evenkeel_router.telemetry.recent import (
    NO_REQUESTS,
    Recent,
    judged,
    latency_s,
    recent_requests,
)
from evenkeel_router.telemetry.requests import requests_answer
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.sampler import sample
from evenkeel_router.telemetry.snapshot import (
    Steps,
    at_replicas,
    fleet_state,
    ledger_state,
    peer_states,
    replica_states,
)

DRAWN: Final = 7
"""Clients that have a line of their own in the charts of all clients: as many as there are colours that differ enough."""
DIGITS: Final = 4
"""Significant digits of samples, which are floats of 4 bytes."""
ConsoleAnswer = consolestate.ConsoleState | consolestate.HourState | consolestate.RequestsState


class Answers:
    """Builds answers one at a time: several would each take a slice in every pass of the loop. Open pages share those about no single
    client or request, for as long as a reading is the newest."""

    def __init__(self, fresh_s: float) -> None:
        self._fresh_s = fresh_s
        self._building = asyncio.Lock()
        self._built: dict[tuple[str, str, str], bytes] = {}
        """(path, tenant, service) → JSON."""
        self._fresh_until_s = 0.0

    async def built(
        self,
        key: tuple[str, str, str],
        asked: Asked,
        build: Callable[[float], Steps[ConsoleAnswer]],
    ) -> bytes:
        """The answer as JSON. `key`: path, tenant, and the service or none; `build` takes the time of the loop's clock."""
        async with self._building:
            if (now_s := asyncio.get_running_loop().time()) >= self._fresh_until_s:
                self._built.clear()
                self._fresh_until_s = now_s + self._fresh_s
            if asked.is_shared and key in self._built:
                return self._built[key]
            body, _ = await in_slices(_encoded(build(now_s)))
            if asked.is_shared:
                self._built[key] = body
            return body


def _encoded(steps: Steps[ConsoleAnswer]) -> Steps[bytes]:
    return msgspec.json.encode((yield from steps))


class Console:
    """The console of one service: its history, its page, and its answers."""

    def __init__(self, rooms: Rooms) -> None:
        self.files = page_files()
        self.rooms = rooms
        self.history = History()
        self._answers = Answers(rooms.settings.timing.console_tick_s)

    async def run(self) -> None:
        """Sample, until cancelled."""
        await sample(self.rooms, self.history)

    async def answer(self, path: str, tenant: str, asked: Asked) -> bytes:
        """Figures of the clients of one tenant, or of all (`WHOLE_SERVICE`). `path`: `NOW_PATH`, `HOUR_PATH` or `REQUESTS_PATH`."""
        return await self._answers.built(
            (path, tenant, ""), asked, lambda now_s: self.steps(path, tenant, asked, now_s)
        )

    def steps(self, path: str, tenant: str, asked: Asked, now_s: float) -> Steps[ConsoleAnswer]:
        """The answer, in steps."""
        rooms, client = self.rooms, asked.client
        if path == consolestate.REQUESTS_PATH:
            return requests_answer(
                rooms, now_s, tenant=tenant, client=client, request_id=asked.request_id
            )
        if path == consolestate.HOUR_PATH:
            return hour_answer(rooms, self.history, now_s, tenant=tenant, client=client)
        return now_answer(rooms, self.history, now_s, tenant=tenant)


class Reading(NamedTuple):
    """The current figures of one service."""

    state: consolestate.ConsoleState
    within_share: list[Recent]
    """Requests of the clients within their share, whose times to the first token the state has."""


def now_answer(
    rooms: Rooms, history: History, now_s: float, *, tenant: str = WHOLE_SERVICE
) -> Steps[consolestate.ConsoleState]:
    """The answer of `NOW_PATH`: of one `namespace/tenant`, or of all."""
    return (yield from now_reading(rooms, history, now_s, tenant=tenant)).state


def now_reading(rooms: Rooms, history: History, now_s: float, *, tenant: str) -> Steps[Reading]:
    """The answer of `NOW_PATH`, with the requests behind its times."""
    window, config = history.now, rooms.settings.config
    recent = yield from recent_requests(rooms, now_s)
    clients = yield from _clients(rooms, history, tenant, recent=recent, now_s=now_s)
    own = recent.get(tenant, NO_REQUESTS)
    total = window.rates.get(tenant, NOTHING)
    everything = recent.get(WHOLE_SERVICE, NO_REQUESTS) if tenant else NO_REQUESTS
    verdict = judged(rooms, own, now_s, tenant, served=total.service_per_s, everything=everything)
    beyond = rooms.service_ledger.fairness.now.beyond_share
    within = [
        of
        for name, of in recent.items()
        if name.count("/") == 2
        and name not in beyond
        and tenant in (WHOLE_SERVICE, tenant_of(name))
    ]
    p50_s, p95_s = latency_s(within)
    state = consolestate.ConsoleState(
        version=consolestate.CONSOLE_VERSION,
        scope="tenant" if tenant else "service",
        tenant=names_of(f"{tenant}/-")[0] if tenant else "",
        namespace=config.namespace,
        service=config.service,
        model=config.model,
        time_unix_s=time.time(),
        uptime_s=time.time() - rooms.intake.started_unix,
        router=rooms.service_ledger.ledger.router,
        window_s=window.seconds,
        draining=rooms.of_process.intake.draining,
        verdict=verdict.sentence,
        level=verdict.level.value,
        fair=verdict.level in (Level.FAIR, Level.NOTHING),
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        waiting=own.waiting,
        oldest_s=own.oldest_s,
        errors=dict(own.causes),
        limits=limits_now(rooms, tenant, now_s),
        total=_with_others(rooms, total, own),
        clients=clients,
    )
    if tenant == WHOLE_SERVICE:
        state = yield from _with_fleet(rooms, history, state, now_s, recent=own, verdict=verdict)
    return Reading(state, within)


def hour_answer(
    rooms: Rooms,
    history: History,
    now_s: float,
    *,
    tenant: str = WHOLE_SERVICE,
    client: str = "",
) -> Steps[consolestate.HourState]:
    """The answer of `HOUR_PATH`. `client`: an identity; one of another tenant has no samples."""
    if client:
        names = [client] if tenant in (WHOLE_SERVICE, tenant_of(client)) else []
    else:
        names = [tenant, *(yield from history.most_concerned(tenant, DRAWN, concerned(rooms)))]
    hour = yield from hour_of(rooms, history, now_s, names)
    if client and tenant == WHOLE_SERVICE:
        hour = msgspec.structs.replace(hour, replicas=client_at_replicas(rooms, client))
    return hour


def client_at_replicas(rooms: Rooms, client: str, model: str = "") -> tuple[AtReplica, ...]:
    """One client at every replica that knows it."""
    return tuple(
        AtReplica(**msgspec.structs.asdict(one), model=model) for one in at_replicas(rooms, client)
    )


def hour_of(
    rooms: Rooms, history: History, now_s: float, names: Sequence[str]
) -> Steps[consolestate.HourState]:
    """The samples of clients, of tenants, or of all, by their names."""
    # All of one moment: no sample is added until the next step.
    times_s = tuple(history.times_s)
    begin_unix_s = time.time() - now_s
    found = [(name, columns) for name in names if (columns := history.columns(name)) is not None]
    series = []
    for name, columns in found:
        series.append(_series(name, columns))
        yield
    return consolestate.HourState(
        version=consolestate.CONSOLE_VERSION,
        router=rooms.service_ledger.ledger.router,
        times_unix_s=tuple(round(begin_unix_s + at_s, 1) for at_s in times_s),
        series=tuple(series),
    )


def _with_fleet(
    rooms: Rooms,
    history: History,
    state: consolestate.ConsoleState,
    now_s: float,
    *,
    recent: Recent,
    verdict: Judgement,
) -> Steps[consolestate.ConsoleState]:
    """Add what only administrators see."""
    replicas = yield from replica_states(rooms, now_s, recent.at_replicas())
    peers = peer_states(rooms, now_s)
    rates = history.now.replicas
    shown = []
    for replica in replicas:
        own = rates.get(replica.name, NOTHING)
        plain = msgspec.structs.asdict(replica) | {
            "service_per_s": own.service_per_s,
            "failing": recent.failing(replica.name),
        }
        shown.append(consolestate.ReplicaNow(**plain, hit_rate=own.hit_rate))
    return msgspec.structs.replace(
        state,
        fleet_policy=rooms.settings.config.scheduling.fleet_policy.value,
        held=len(rooms.replicas.wait_queue),
        fleet=fleet_state(rooms, verdict),
        replicas=tuple(shown),
        conditions=conditions(rooms, history.now, peers, now_s, recent=recent),
        ledger=ledger_state(rooms),
        peers=peers,
    )


def _clients(
    rooms: Rooms,
    history: History,
    scope: str,
    *,
    recent: Mapping[str, Recent],
    now_s: float,
) -> Steps[tuple[consolestate.ClientNow, ...]]:
    """Clients that the router knows: declared, or served since it started."""
    ledger, rates = rooms.service_ledger, history.now.rates
    found = []
    for one in client_figures(ledger.fairness.now, rooms.totals, ledger.weights.declared):
        found.append(one)
        yield
    own = {one.identity: rates.get(one.identity, NOTHING) for one in found}
    active = [name for name, of in own.items() if of.service_per_s > 0 or of.waiting or of.running]
    fair_shares = shares(active, ledger.weights.client, ledger.weights.tenant)
    everything = recent.get(WHOLE_SERVICE, NO_REQUESTS)
    clients = []
    for n, one in enumerate(found):
        if scope in (WHOLE_SERVICE, tenant_of(one.identity)):
            share = fair_shares.get(one.identity, 0.0)
            of = recent.get(one.identity, NO_REQUESTS)
            clients.append(
                _client(
                    rooms, one, rates, scope, share=share, recent=of, everything=everything, now_s=now_s
                )
            )  # fmt: skip
        if n % STRIDE == 0:
            yield
    return tuple(clients)


def whole_of(rates: Mapping[str, Figures], scope: str) -> float:
    """What shares are parts of: the service of all clients in scope. A tenant may be owed more than it receives; then it is that."""
    all_of_it = rates.get(scope, NOTHING)
    if scope == WHOLE_SERVICE:
        return all_of_it.service_per_s
    return max(all_of_it.service_per_s, all_of_it.owed_per_s)


def _client(
    rooms: Rooms,
    one: ClientFigures,
    rates: Mapping[str, Figures],
    scope: str,
    *,
    share: float,
    recent: Recent,
    everything: Recent,
    now_s: float,
) -> consolestate.ClientNow:
    """One client as the console shows it. `share`: its part of the fleet if every active client waited. `everything`: the
    requests of all."""
    ledger, name = rooms.service_ledger, one.identity
    weights, part = ledger.weights, ledger.fairness.now.given_over_owed.get(name)
    own = _with_others(rooms, rates.get(name, NOTHING), recent)
    fleet, together = rates.get(WHOLE_SERVICE, NOTHING).service_per_s, whole_of(rates, scope)
    hurts = _hurts(rooms, name)
    found = judge_client(
        ClientRecord(
            given_over_owed=part,
            hurts=hurts,
            active=one.here.in_flight > 0
            or own.service_per_s > 0
            or own.running > 0
            or recent.ended > 0,
            failed=recent.failed,
            given_up=recent.counted_given_up(everything),
            ended=recent.ended,
            left=recent.left,
            running=own.running,
            nobody_answered=everything.nobody_answered,
            waiting=own.waiting,
            oldest_s=recent.oldest_s,
            held=recent.held,
            held_s=recent.held_s,
            silence=recent.silence(rooms.silences.now, now_s, named=False),
            received=mean(own.service_per_s, fleet),
            share=share,
        )
    )
    p50_s, p95_s = recent.latency_s()
    return consolestate.ClientNow(
        **msgspec.structs.asdict(own),
        hurts=hurts,
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        oldest_s=recent.oldest_s,
        held=recent.held,
        failed=recent.failed + recent.given_up,
        causes=dict(recent.causes),
        identity=name,
        tenant=one.tenant,
        client=one.name,
        weight=f"{weights.tenant(tenant_of(name)):g}·{weights.client(name):g}",
        words=found.sentence,
        level=found.level.value,
        fair=found.level is not Level.HELD_UP and (part is None or part >= AS_OWED),
        share=mean(own.service_per_s, together),
        owed=mean(own.owed_per_s, together) if one.fleet.backlogged else None,
        given_over_owed=part,
        requested_per_s=one.fleet.requested_per_s,
        lead_s=one.fleet.lead_s,
        in_flight=one.here.in_flight,
        requests=one.here.requests,
        errors=one.here.errors.total(),
    )


def _with_others(rooms: Rooms, own: Figures, recent: Recent) -> Figures:
    """The figures of a window, with the requests that wait and run now. Those at other routers are as of the end of the window."""
    waiting, running = recent.waiting, recent.running
    if rooms.service_ledger.peer_contacts:
        waiting, running = max(waiting, own.waiting), max(running, own.running)
    return msgspec.structs.replace(own, waiting=waiting, running=running)


def _hurts(rooms: Rooms, name: str) -> bool:
    """Whether a client took what another one, given too little, was owed."""
    now = rooms.service_ledger.fairness.now
    taken = now.took.get(name)
    unfair = min(now.given_over_owed.values(), default=1.0) < AS_OWED
    return unfair and taken is not None and taken.given - taken.owed >= LEAST_SURPLUS


def concerned(rooms: Rooms) -> list[str]:
    """Clients that are hurt, the most hurt first, and those that hurt them."""
    now = rooms.service_ledger.fairness.now
    hurt = [name for name, part in now.given_over_owed.items() if part < AS_OWED]
    hurt.sort(key=now.given_over_owed.__getitem__)
    taking = [name for name in now.took if _hurts(rooms, name)]
    # Each side gets half of the lines at least, where both have so many.
    half = DRAWN // 2
    return [*taking[:half], *hurt, *taking[half:]]


def limits_now(rooms: Rooms, scope: str, now_s: float) -> tuple[consolestate.LimitNow, ...]:
    """The limits of one tenant, or of all that sent a request."""
    return tuple(
        one for one in rooms.intake.admission.used(now_s) if scope in (WHOLE_SERVICE, one.tenant)
    )


def _series(name: str, columns: dict[str, list[float]]) -> consolestate.Series:
    tenant, client = names_of(name) if name.count("/") == 2 else ("", "")
    figures = {figure: tuple(map(_rounded, values)) for figure, values in columns.items()}
    return consolestate.Series(identity=name, tenant=tenant, client=client, model="", **figures)


def _rounded(value: float) -> float | None:
    return None if isnan(value) else float(f"{value:.{DIGITS}g}")
