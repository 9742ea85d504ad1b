"""What each client was given over what it was owed (design §7).

The run is divided into moments. A client waits in a moment if it has a request that is not admitted in all of that moment. The
clients that wait are owed their shares of what they were given together, but no client more than it was given and its waiting
requests cost; the others are owed the rest (`tenancy.divided`). A client that does not wait is owed what it was given. So the
quotient is 1 for a client that got all it asked for, whatever the others got.

A run is judged by its worst minute (`evenkeel_fairshare.window`). Routers compute their figures by the same rule from the reports of
replicas (`evenkeel_router.ledger.fairness`). There a request that waits costs what the client's requests cost lately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Final

from evenkeel_fairshare.tenancy import divided
from evenkeel_fairshare.window import WINDOW_S, Moment, Window, WindowShares

from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.timeline import Span, served
from evenkeel_simulator.traffic.workload import Client, tenant_of

MOMENT_S: Final = 1.0
MOMENTS: Final = 1000
"""Most moments of a run; those of a longer run are longer."""


@dataclass(frozen=True, slots=True)
class Owed:
    """What was owed in a run."""

    service: dict[str, float]
    """Client → weighted tokens."""
    shares: WindowShares = field(default_factory=WindowShares)
    """The worst minute of each client; `took` is of the worst minute of all. A run of less than a minute is one window."""


def owed_service(records: Collection[Record], clients: Mapping[str, Client], end_s: float) -> Owed:
    """What was owed in a run from 0 to `end_s`. A client in neither `clients` nor a tenant weighs 1."""
    moment_s = max(MOMENT_S, end_s / MOMENTS)
    moments = max(1, ceil(end_s / moment_s))
    windows = [(moment_s * n, moment_s * (n + 1)) for n in range(moments)]
    given = served(_service(records), windows)
    waiting: list[list[str]] = [[] for _ in windows]
    for client, intervals in _waits(records).items():
        given.setdefault(client, [0.0] * moments)
        for begin_s, until_s in intervals:
            for moment in range(ceil(begin_s / moment_s), int(until_s / moment_s)):
                waiting[moment].append(client)
    asked = _asked(records, moment_s, moments)
    owed = {client: sum(amounts) for client, amounts in given.items()}
    known = [clients.get(name) or Client(name, tenant_of(name)) for name in given]
    identities = {  # a number instead of the name, which may have slashes
        client.name: f"{client.tenant}/{number}" for number, client in enumerate(known)
    }
    weights = {identities[client.name]: client.client_weight for client in known}
    tenants = {client.tenant: client.tenant_weight for client in known}
    judge = _Judge(min(WINDOW_S, moment_s * moments))
    for moment, names in enumerate(waiting):
        most = {identities[name]: given[name][moment] + asked[name][moment] for name in names}
        together = sum([given[name][moment] for name in names])
        parts = divided(together, most, weights.__getitem__, tenants.__getitem__)
        competed = {name: (parts[identities[name]], given[name][moment]) for name in names}
        for name, (due, own) in competed.items():
            owed[name] += due - own
        judge.add(Moment(moment_s * (moment + 1), competed))
    return Owed(owed, judge.worst())


class _Judge:
    """Finds the worst minute of a run. `least_s`: length from which a window counts, seconds."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._window = Window()
        self._window.add(Moment(0.0, {}))
        self._least: dict[str, float] = {}
        self._worst = WindowShares()

    def add(self, moment: Moment) -> None:
        self._window.add(moment)
        if self._window.span_s < self._least_s:
            return
        shares = self._window.shares()
        for name, part in shares.given_over_owed.items():
            self._least[name] = min(part, self._least.get(name, part))
        if shares.least < self._worst.least:
            self._worst = shares

    def worst(self) -> WindowShares:
        return replace(self._worst, given_over_owed=self._least)


def _asked(records: Collection[Record], moment_s: float, moments: int) -> dict[str, list[float]]:
    """Client → service of the requests that waited, per moment, weighted tokens. Infinite if some did not end."""
    found: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * moments)
    for record in records:
        until_s = _waits_until_s(record)
        if until_s is None:
            continue
        cost = service_of(record) if record.finished_s is not None else inf
        for moment in range(
            int(record.arrival_s / moment_s), min(moments, ceil(until_s / moment_s))
        ):
            found[record.client][moment] += cost
    return found


def service_of(record: Record) -> float:
    """What was computed for a request, in weighted tokens."""
    return record.extend_tokens + 2.0 * record.output_tokens


def _service(records: Collection[Record]) -> Iterator[Span]:
    """Input when it is computed, output while it is."""
    for record in records:
        if record.first_token_s is None or record.finished_s is None:
            continue
        begin_s = record.first_token_s if record.admitted_s is None else record.admitted_s
        yield Span(record.client, begin_s, record.first_token_s, record.extend_tokens)
        yield Span(
            record.client, record.first_token_s, record.finished_s, 2.0 * record.output_tokens
        )


def _waits_until_s(record: Record) -> float | None:
    """The admission; where it is not known, the first token."""
    return record.first_token_s if record.admitted_s is None else record.admitted_s


def _waits(records: Collection[Record]) -> dict[str, list[tuple[float, float]]]:
    """Client → intervals in which it had a waiting request, apart from each other and ascending."""
    single: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in records:
        until_s = _waits_until_s(record)
        if until_s is not None:
            single[record.client].append((record.arrival_s, until_s))
    merged: dict[str, list[tuple[float, float]]] = {}
    for client, intervals in single.items():
        apart: list[tuple[float, float]] = []
        for begin_s, until_s in sorted(intervals):
            if apart and begin_s <= apart[-1][1]:
                apart[-1] = (apart[-1][0], max(apart[-1][1], until_s))
            else:
                apart.append((begin_s, until_s))
        merged[client] = apart
    return merged
