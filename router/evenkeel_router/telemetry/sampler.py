"""Reads all totals of the router every two seconds, for the console's history."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Generator
from typing import Final

from evenkeel_fairshare.ledger import tenant_of

from evenkeel_router.api.identity import other_clients
from evenkeel_router.ledger.clients import client_figures
from evenkeel_router.slices import in_slices
from evenkeel_router.telemetry.history import STRIDE, History, Moment
from evenkeel_router.telemetry.recent import recent_requests
from evenkeel_router.telemetry.rooms import Rooms

FIRST_REPORTS_S: Final = 30.0
"""Longest wait for the first reports. They contain the service of earlier hours, which would show as a peak."""


async def sample(rooms: Rooms, history: History) -> None:
    """Keep the history up to date, until cancelled."""
    tick_s = rooms.settings.timing.console_tick_s
    now = asyncio.get_running_loop().time
    deadline_s = now() + FIRST_REPORTS_S
    while now() < deadline_s:
        if rooms.replicas.in_sync and rooms.replicas.all_reported():
            break
        await asyncio.sleep(tick_s)
    while True:
        # Before the first reading too: until then, the figures of fairness do not include the reports.
        await asyncio.sleep(tick_s)
        await in_slices(_tick(rooms, history, now()))


def _tick(rooms: Rooms, history: History, now_s: float) -> Generator[None, None, None]:
    yield from rooms.totals.collect()
    rooms.silences.look(now_s)
    moment = yield from read(rooms, now_s)
    latencies = {}
    if history.samples_next:
        recent = yield from recent_requests(rooms, now_s)
        for name, own in recent.items():
            if name.count("/") == 2 and (p50_s := own.latency_s()[0]) is not None:
                latencies[name] = p50_s
    yield from history.add(moment, latencies)


def read(rooms: Rooms, now_s: float) -> Generator[None, None, Moment]:
    """All clients and replicas at one moment, in steps."""
    now, totals = rooms.service_ledger.fairness.now, rooms.totals
    named = now.clients.keys() | {own.identity for own in totals.clients()}
    waiting, running = _own_counts(rooms)
    replicas: dict[str, tuple[float, float, float]] = {}
    for member in list(rooms.replicas.fleet):
        account = rooms.service_ledger.account(member.name)
        of = rooms.replicas.totals[member.name]
        service = 0.0 if account is None else account.service
        replicas[member.name] = service, of.cached_tokens, of.input_tokens
        yield
    if rooms.service_ledger.peer_contacts:
        # Requests of other routers are known by what replicas report only.
        for counts, reported in zip((waiting, running), _reported(rooms), strict=True):
            counts |= reported
        yield
    for counts in (waiting, running):
        for name in counts.keys() - named:
            # A client without figures of its own is one of its tenant's other clients, if the tenant has any.
            if (rest := other_clients(tenant_of(name))) in named:
                counts[rest] += counts.pop(name)
    also, clients = waiting.keys() | running.keys(), {}
    found = client_figures(now, totals, also, waiting=waiting, running=running)
    for n, own in enumerate(found):
        clients[own.identity] = own
        if n % STRIDE == 0:
            yield
    return Moment(now_s, clients, replicas, time.thread_time())


def _own_counts(rooms: Rooms) -> tuple[Counter[str], Counter[str]]:
    """This router's requests by client: those that wait, because their answer has not begun, and the others."""
    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for one in list(rooms.intake.active_requests):
        if one.client is not None:
            counts = waiting if one.first_byte_s is None else running
            counts[one.client.identity] += 1
    return waiting, running


def _reported(rooms: Rooms) -> tuple[Counter[str], Counter[str]]:
    """Requests by client in the queues and in the batches of replicas, as the live ones report them."""
    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for member in list(rooms.replicas.fleet):
        account = rooms.service_ledger.account(member.name) if member.joined else None
        if account is not None:
            for counts, found in ((waiting, account.waiting), (running, account.running)):
                counts.update({name: int(count) for name, count in found.items()})
    return waiting, running
