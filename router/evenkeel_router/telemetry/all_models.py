"""What the console shows of all models of a router together: sums, the worst verdict, and a row or a line for each model.

Means of several models are left out, because they are not comparable without their counts. Times of a client are those of the model
in which it waits longest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Final

from evenkeel_contract import consolestate
from evenkeel_contract.consolestate import (
    AlertCondition,
    AtReplica,
    ClientNow,
    Column,
    ConsoleState,
    HourState,
    ModelNow,
    RequestNow,
    RequestsState,
    Series,
)
from evenkeel_contract.figures import Figures, mean
from evenkeel_fairshare.ledger import tenant_of
from evenkeel_fairshare.verdict import Judgement, Level
from msgspec.structs import replace

from evenkeel_router.request.tenant_console import Asked
from evenkeel_router.telemetry.console import (
    Console,
    ConsoleAnswer,
    client_at_replicas,
    hour_of,
    now_reading,
)
from evenkeel_router.telemetry.history import FIELDS, STRIDE, SUMS, TICKS, WHOLE_SERVICE, together
from evenkeel_router.telemetry.recent import Recent, latency_s
from evenkeel_router.telemetry.requests import SHOWN, requests_answer
from evenkeel_router.telemetry.snapshot import Steps

_WORST_FIRST: Final = tuple(level.value for level in Level)

Consoles = Mapping[str, Console]
"""The usual name of a model → its console."""


def steps(
    consoles: Consoles, path: str, asked: Asked, now_s: float, *, tenant: str
) -> Steps[ConsoleAnswer]:
    """The answer about all models, in steps; at least one model is given."""
    if path == consolestate.REQUESTS_PATH:
        return _requests(consoles, now_s, tenant=tenant, asked=asked)
    if path == consolestate.HOUR_PATH:
        return _hour(consoles, now_s, tenant=tenant, client=asked.client)
    return _now(consoles, now_s, tenant=tenant)


def _now(consoles: Consoles, now_s: float, *, tenant: str) -> Steps[ConsoleState]:
    states: dict[str, ConsoleState] = {}
    within: list[Recent] = []
    for model, console in consoles.items():
        reading = yield from now_reading(console.rooms, console.history, now_s, tenant=tenant)
        states[model] = reading.state
        within += reading.within_share
    clients = yield from _clients(states)
    p50_s, p95_s = latency_s(within)
    every, judgement = list(states.values()), judge_all(states)
    errors: Counter[str] = Counter()
    for one in every:
        errors.update(one.errors)
    return replace(
        every[0],
        service="",
        model="",
        models=tuple(_model(model, one) for model, one in states.items()),
        window_s=min(one.window_s for one in every),
        verdict=judgement.sentence,
        level=judgement.level.value,
        fair=all(one.fair for one in every),
        total=together(one.total for one in every),
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        waiting=sum(one.waiting for one in every),
        oldest_s=max(one.oldest_s for one in every),
        errors=dict(errors),
        clients=clients,
        fleet_policy="",
        held=sum(one.held for one in every),
        fleet=None,
        replicas=tuple(
            replace(replica, model=model)
            for model, one in states.items()
            for replica in one.replicas
        ),
        conditions=tuple(_conditions(states)),
        ledger=None,
        peers=(),
    )


def judge_all(states: Mapping[str, ConsoleState]) -> Judgement:
    """The worst verdict, with the name of its model."""
    by_level: dict[str, list[str]] = {}
    for model, state in states.items():
        by_level.setdefault(state.level, []).append(model)
    worst = Level(min(by_level, key=_WORST_FIRST.index))
    fair, idle = (by_level.get(level.value, []) for level in (Level.FAIR, Level.NOTHING))
    if worst is Level.NOTHING:
        return Judgement(worst, f"Nothing to judge in any of {len(states)} models.")
    if worst is Level.FAIR:
        rest = f"; there is nothing to judge in {', '.join(idle)}" if idle else ""
        return Judgement(worst, f"Fair in {', '.join(fair)}{rest}.")
    first, *others = by_level[worst.value]
    others += [
        model
        for model, state in states.items()
        if state.level not in (worst.value, Level.FAIR.value, Level.NOTHING.value)
    ]
    also = f" Also see {', '.join(others)}." if others else ""
    return Judgement(worst, f"{first}: {states[first].verdict}{also}")


def _model(model: str, state: ConsoleState) -> ModelNow:
    total = {name: getattr(state.total, name) for name in Figures.__struct_fields__}
    replicas = state.replicas if state.scope == "service" else None
    return ModelNow(
        **total,
        model=model,
        service=state.service,
        level=state.level,
        verdict=state.verdict,
        ttft_p50_s=state.ttft_p50_s,
        ttft_p95_s=state.ttft_p95_s,
        oldest_s=state.oldest_s,
        failed=sum(state.errors.values()),
        replicas=None if replicas is None else len(replicas),
        routable=None if replicas is None else sum(one.routable for one in replicas),
    )


def _conditions(states: Mapping[str, ConsoleState]) -> Iterable[AlertCondition]:
    """Conditions of each model, named; those about no part of a service are the process's, and the same at each."""
    found = [
        replace(one, message=f"{model}: {one.message}")
        for model, state in states.items()
        for one in state.conditions
        if one.about
    ]
    first = next(iter(states.values()))
    found += [one for one in first.conditions if not one.about]
    return sorted(found, key=lambda condition: not condition.problem)


def _clients(states: Mapping[str, ConsoleState]) -> Steps[tuple[ClientNow, ...]]:
    by_identity: dict[str, list[tuple[str, ClientNow]]] = {}
    for model, state in states.items():
        for n, one in enumerate(state.clients):
            by_identity.setdefault(one.identity, []).append((model, one))
            if n % STRIDE == 0:
                yield
    served = sum(state.total.service_per_s for state in states.values())
    found = []
    for n, rows in enumerate(by_identity.values()):
        found.append(_client(rows, served))
        if n % STRIDE == 0:
            yield
    return tuple(found)


def _client(rows: Sequence[tuple[str, ClientNow]], served: float) -> ClientNow:
    """One client in all models. `served`: weighted tokens per second of all clients in all models."""
    clients = [one for _, one in rows]
    sums = together(clients)
    model, worst = min(rows, key=lambda row: _fares(row[1]))
    causes: Counter[str] = Counter()
    for one in clients:
        causes.update(one.causes)
    waits = any(one.owed is not None for one in clients)
    alike = len({one.words for one in clients}) == 1
    return replace(
        worst,
        **{name: getattr(sums, name) for name in Figures.__struct_fields__},
        words=worst.words if alike else f"{model}: {worst.words}",
        fair=all(one.fair for one in clients),
        hurts=any(one.hurts for one in clients),
        ttft_p50_s=_most(one.ttft_p50_s for one in clients),
        ttft_p95_s=_most(one.ttft_p95_s for one in clients),
        oldest_s=max(one.oldest_s for one in clients),
        held=sum(one.held for one in clients),
        failed=sum(one.failed for one in clients),
        share=mean(sums.service_per_s, served),
        owed=mean(sums.owed_per_s, served) if waits else None,
        given_over_owed=_most((one.given_over_owed for one in clients), min),
        requested_per_s=sum(one.requested_per_s for one in clients),
        lead_s=max(one.lead_s for one in clients),
        in_flight=sum(one.in_flight for one in clients),
        requests=sum(one.requests for one in clients),
        errors=sum(one.errors for one in clients),
        causes=dict(causes),
    )


def _fares(client: ClientNow) -> tuple[float, ...]:
    """The smaller, the worse a client fares in a model; then, the more it uses the model."""
    part = client.given_over_owed
    return (
        _WORST_FIRST.index(client.level),
        inf if part is None or client.fair else part,
        -client.held,
        -client.failed,
        -client.waiting,
        -client.service_per_s,
    )


def _most(
    values: Iterable[float | None], choose: Callable[[Iterable[float]], float] = max
) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def _hour(consoles: Consoles, now_s: float, *, tenant: str, client: str) -> Steps[HourState]:
    hours: dict[str, HourState] = {}
    replicas: list[AtReplica] = []
    if not client or tenant in (WHOLE_SERVICE, tenant_of(client)):
        for model, console in consoles.items():
            rooms = console.rooms
            hours[model] = yield from hour_of(rooms, console.history, now_s, [client or tenant])
            if client and tenant == WHOLE_SERVICE:
                replicas += client_at_replicas(rooms, client, model)
    first = next(iter(consoles.values()))
    longest = max((one.times_unix_s for one in hours.values()), key=len, default=())
    interval_s = TICKS * first.rooms.settings.timing.console_tick_s
    lines = []
    for model, hour in hours.items():
        for one in hour.series:
            places = nearest(hour.times_unix_s, longest, interval_s)
            columns = {field: _at(getattr(one, field), places) for field in FIELDS}
            lines.append(replace(one, model=model, **columns))
            yield
    return HourState(
        version=consolestate.CONSOLE_VERSION,
        router=first.rooms.service_ledger.ledger.router,
        times_unix_s=longest,
        series=(_sum(lines), *lines) if lines else (),
        replicas=tuple(replicas),
    )


def nearest(
    times_s: Sequence[float], wanted_s: Sequence[float], within_s: float
) -> list[int | None]:
    """The index of the nearest time, for each wanted one; None where all are farther away than `within_s`."""
    found: list[int | None] = []
    for wanted in wanted_s:
        right = bisect_left(times_s, wanted)
        near = [at for at in (right - 1, right) if 0 <= at < len(times_s)]
        best = min(near, key=lambda at: abs(times_s[at] - wanted), default=None)
        is_near = best is not None and abs(times_s[best] - wanted) <= within_s
        found.append(best if is_near else None)
    return found


def _at(column: Column, places: Sequence[int | None]) -> Column:
    return tuple(None if place is None else column[place] for place in places)


def _sum(lines: Sequence[Series]) -> Series:
    """All models together. Times of different models have no sum."""
    first = lines[0]
    columns: dict[str, Column] = {"ttft_s": (None,) * len(first.ttft_s)}
    for field in SUMS:
        rows = zip(*(getattr(one, field) for one in lines), strict=True)
        known = ([value for value in row if value is not None] for row in rows)
        columns[field] = tuple(sum(row) if row else None for row in known)
    return replace(first, model="", **columns)


def _requests(
    consoles: Consoles, now_s: float, *, tenant: str, asked: Asked
) -> Steps[RequestsState]:
    found: list[tuple[RequestNow, RequestsState]] = []
    kept = 0
    for model, console in consoles.items():
        state = yield from requests_answer(
            console.rooms, now_s, tenant=tenant, client=asked.client, request_id=asked.request_id
        )
        kept = state.kept
        found += [(replace(one, model=model), state) for one in state.requests]
        yield
    found.sort(key=lambda row: -row[0].begun_unix_s)
    newest = found[0][1] if found else None
    return RequestsState(
        version=consolestate.CONSOLE_VERSION,
        router=next(iter(consoles.values())).rooms.service_ledger.ledger.router,
        kept=kept,
        requests=tuple(one for one, _ in found[:SHOWN]),
        words=() if newest is None else newest.words,
        ahead=() if newest is None else newest.ahead,
        ahead_more=0 if newest is None else newest.ahead_more,
    )
