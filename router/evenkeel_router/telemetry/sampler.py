"""Reads all totals of the router every two seconds, for the console's history."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Generator
from operator import attrgetter
from typing import Final

from evenkeel_fairshare.ledger import tenant_of
from evenkeel_fairshare.ledger.replica_account import RUNNING, SERVICE, WAITING

from evenkeel_router.api.identity import other_clients
from evenkeel_router.ledger.fairness import NO_FIGURES
from evenkeel_router.telemetry.history import STRIDE, History, Moment, Reading
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.slices import in_slices

FIRST_REPORTS_S: Final = 30.0
"""Longest wait for the first reports. They contain the service of earlier hours, which would show as a peak."""

TOTALS_OF: Final = attrgetter(
    *("output_tokens", "ttft_s", "answers", "input_tokens", "cached_tokens", "qoe", "qoe_streams")
)
"""As in `Reading`."""
NO_TOTALS: Final = (0,) * 7


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
    moment = yield from read(rooms, now_s)
    yield from history.add(moment)


def read(rooms: Rooms, now_s: float) -> Generator[None, None, Moment]:
    """All clients and replicas at one moment, in steps."""
    served = rooms.service_ledger.fairness.now.clients
    own = {totals.identity: totals for totals in rooms.totals.clients()}
    named = served.keys() | own.keys()
    waiting, running = yield from _requests(rooms, named)
    names = dict.fromkeys((*served, *own, *waiting, *running))
    clients: dict[str, Reading] = {}
    for n, name in enumerate(names):
        figures, totals = served.get(name, NO_FIGURES), own.get(name)
        answered = NO_TOTALS if totals is None else TOTALS_OF(totals)
        clients[name] = Reading._make(
            (figures.service, figures.owed, *answered, waiting[name], running[name])
        )
        if n % STRIDE == 0:
            yield
    replicas = yield from _replicas(rooms)
    return Moment(now_s, clients, replicas, time.thread_time())


def _requests(
    rooms: Rooms, named: Collection[str]
) -> Generator[None, None, tuple[Counter[str], Counter[str]]]:
    """Waiting and running requests by client: as replicas report them, and those at this router's gates.

    A client that has no figures of its own in `named` is one of its tenant's other clients, if the tenant has any.
    """

    def shown(name: str) -> str:
        if name in named:
            return name
        rest = other_clients(tenant_of(name))
        return rest if rest in named else name

    waiting: Counter[str] = Counter()
    running: Counter[str] = Counter()
    for member in list(rooms.replicas.fleet):
        account = rooms.service_ledger.account(member.name)
        if account is not None:
            for counts, column in ((waiting, WAITING), (running, RUNNING)):
                for name in account.clients.positive(column):
                    counts[shown(name)] += int(account.clients.cell(name, column))
        gate = rooms.gates.gate(member.name)
        if gate is not None:
            waiting.update(shown(request.client) for request in gate.waiting())
        yield
    return waiting, running


def _replicas(rooms: Rooms) -> Generator[None, None, dict[str, Reading]]:
    found: dict[str, Reading] = {}
    for member in list(rooms.replicas.fleet):
        account = rooms.service_ledger.account(member.name)
        totals = rooms.replicas.totals[member.name]
        found[member.name] = Reading(
            service=0.0 if account is None else sum(account.clients.column(SERVICE)),
            input_tokens=totals.input_tokens,
            cached_tokens=totals.cached_tokens,
        )
        yield
    return found
