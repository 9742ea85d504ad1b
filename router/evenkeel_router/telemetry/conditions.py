"""The conditions of alerts that a router can judge itself, and the problems that have no alert.

An alert fires after its condition was true for some minutes; Prometheus knows that, a router does not. The names are those of
`monitoring/alerts/service.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from evenkeel_contract.adminstate import PeerState
from evenkeel_contract.consolestate import RUNBOOKS_PATH, AlertCondition
from msgspec.structs import replace

from evenkeel_router.api.identity import names_of
from evenkeel_router.fleet.health import FOR_GOOD
from evenkeel_router.telemetry.history import RateWindow
from evenkeel_router.telemetry.recent import Recent
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.silences import FLEET

# The limits of the alerts (monitoring/alerts/service.yaml).
STALE_S: Final = 30.0
STARVED: Final = 0.5
SATURATED: Final = 0.9
FAILING: Final = 0.144
LATE_S: Final = 300.0
"""Time after the drain timeout from which a draining replica is stuck."""


def conditions(
    rooms: Rooms, window: RateWindow, peers: tuple[PeerState, ...], now_s: float, *, recent: Recent
) -> tuple[AlertCondition, ...]:
    """All conditions, the problems first. `recent`: all requests of the last minute."""
    found = [
        *(replace(one, about="replicas") for one in _replicas(rooms, now_s, recent)),
        *(replace(one, about="clients") for one in _lost(recent)),
        *(replace(one, about="clients") for one in _fairness(rooms)),
        *(replace(one, about="ledger") for one in _ledger(rooms, peers)),
        _router(rooms, window),
        *(_is("", True, f"The newest configuration is invalid: {fault}") for fault in rooms.of_process.settings.faults),
    ]  # fmt: skip
    folder = rooms.settings.config.runbooks
    linked = (replace(one, runbook=runbook(folder, one.alert)) for one in found)
    return tuple(sorted(linked, key=lambda condition: not condition.problem))


def runbook(folder: str | None, alert: str) -> str:
    """The address of an alert's page: EvenkeelReplicaSuspect has `replica-suspect.md`. Empty without a folder or an alert. The router shows
    pages of a folder on this machine itself."""
    if not folder or not alert:
        return ""
    if folder.startswith("file:"):
        folder = RUNBOOKS_PATH
    page = re.sub("(?<=[a-z])(?=[A-Z])", "-", alert.removeprefix("Evenkeel")).lower()
    return f"{folder.rstrip('/')}/{page}.md"


def _is(alert: str, problem: object, message: str, otherwise: str = "") -> AlertCondition:
    """One condition. `otherwise`: the message where there is no problem, if it differs."""
    text = message if problem or not otherwise else otherwise
    return AlertCondition(alert=alert, problem=bool(problem), message=text)


def _fairness(rooms: Rooms) -> Iterator[AlertCondition]:
    config, now = rooms.settings.config, rooms.service_ledger.fairness.now
    if (percent := config.max_share_error_percent) is not None:
        message = f"The share error is {now.share_error:.0%}; {percent}% is allowed."
        yield _is("EvenkeelShareSkewed", 100 * now.share_error > percent, message)
    if (most_s := config.max_lead_s) is not None:
        message = f"The lead is {now.lead_s:.1f} s of fair service; {most_s:g} s are allowed."
        yield _is("EvenkeelLeadTooLong", now.lead_s > most_s, message)
    starved = sorted(
        "/".join(names_of(name)) for name, part in now.given_over_owed.items() if part < STARVED
    )
    yield _is(
        "EvenkeelClientStarved",
        starved,
        f"Given less than half of what they were owed: {', '.join(starved[:5])}.",
        "No client that is judged was given less than half of what it was owed.",
    )


def _lost(recent: Recent) -> Iterator[AlertCondition]:
    """The counts are those of the verdict."""
    of = f"of {recent.ended} requests of the last minute"
    causes = ", ".join(f"{name} {count}" for name, count in recent.failures.most_common(3))
    message = f"{recent.failed} {of} failed: {causes}." if recent.failed else "No request failed."
    yield _is("EvenkeelRequestsFailing", recent.failed > FAILING * recent.ended, message)
    given_up, counted = recent.given_up, recent.counted_given_up()
    whose = "" if counted == given_up else "by clients that ask for more than their share"
    if whose:
        whose = f", {f'{given_up - counted} of them ' if counted else ''}{whose}"
    message = f"Clients gave up {given_up} {of}{whose}." if given_up else "No client gave up."
    yield _is("EvenkeelRequestsGivenUp", counted > FAILING * recent.ended, message)
    if recent.nobody_answered:
        message = (
            f"None of {recent.left} requests of the last minute was answered; their clients left."
        )
        yield _is("", True, message)


def _replicas(rooms: Rooms, now_s: float, recent: Recent) -> Iterator[AlertCondition]:
    fleet, reports = list(rooms.replicas.fleet), rooms.replicas.reports
    routable = [member for member in fleet if member.routable]
    message = f"{len(routable)} of {len(fleet)} replicas take requests."
    yield _is("EvenkeelReplicasMissing", not routable, message)
    silent = rooms.silences.now
    names = sorted(silent.keys() - {FLEET})
    for_s = now_s - min(silent.values(), default=now_s)
    message = f"No token for {for_s:.0f} s while requests wait: {', '.join(names)}."
    yield _is(
        "EvenkeelRequestsGivenUp", names, message, "Replicas give tokens where requests wait."
    )
    ages = {
        one.name: now_s - reports[one.name].received_s for one in routable if one.name in reports
    }
    old = sorted(name for name, age_s in ages.items() if age_s > STALE_S)
    message = f"No report for {max(ages.values(), default=0.0):.0f} s: {', '.join(old)}."
    yield _is("EvenkeelLedgerStale", old, message, "Every replica reports.")
    for member in fleet:
        if why := member.standing.suspicion:
            yield _is("EvenkeelReplicaSuspect", True, f"Replica {member.name} is {why}.")
        elif failing := recent.failing(member.name):
            message = f"Replica {member.name} failed {failing:.0%} of its latest requests."
            yield _is("EvenkeelReplicaFailing", True, message)
    yield _draining(rooms, now_s)
    if rooms.replicas.activation.wanted:
        yield _is("EvenkeelActivationStuck", True, "A request waits for the first replica.")


def _draining(rooms: Rooms, now_s: float) -> AlertCondition:
    """Each rollout drains replicas: that is a problem only once it takes too long."""
    since_s = {
        one.name: now_s - one.unschedulable_since_s
        for one in rooms.replicas.fleet
        if one.unschedulable in FOR_GOOD
    }
    late_s = rooms.settings.config.drain_timeout_s + LATE_S
    stuck = {name: age_s for name, age_s in since_s.items() if age_s > late_s}
    named = ", ".join(
        f"{name} for {age_s:.0f} s" for name, age_s in sorted((stuck or since_s).items())
    )
    fine = f"Draining: {named}." if since_s else "No replica drains."
    return _is(
        "EvenkeelDrainStuck", stuck, f"Draining: {named}; {late_s:.0f} s are usual at most.", fine
    )


def _ledger(rooms: Rooms, peers: tuple[PeerState, ...]) -> Iterator[AlertCondition]:
    uncounted = sorted(rooms.uncounted())
    message = f"The ledger does not count the service of {', '.join(uncounted)}."
    fine = "The ledger counts the service of every replica."
    yield _is("EvenkeelReplicasUncounted", uncounted, message, fine)
    error = rooms.service_ledger.store_error
    store = f"The store {rooms.settings.config.state.store.value}"
    message = f"{store} fails: {error}."
    yield _is("EvenkeelLedgerStoreUnavailable", error, message, f"{store} works.")
    cells = rooms.service_ledger.cell_contacts.items()
    silent = sorted(
        f"{cell.name} ({one.error or 'no answer yet'})" for cell, one in cells if not one.counts
    )
    if cells:
        message = f"Cells that do not count: {', '.join(silent)}."
        yield _is("EvenkeelCellSilent", silent, message, "Every other cell answers.")
    for peer in peers:
        if peer.error:
            yield _is("", True, f"Router {peer.name} does not answer: {peer.error}.")


def _router(rooms: Rooms, window: RateWindow) -> AlertCondition:
    most, in_flight = rooms.settings.config.limits.max_concurrent, rooms.intake.admission.running
    message = f"This router uses {window.cpu:.0%} of a core, and {in_flight} of {most} requests are in flight."
    return _is("EvenkeelRouterSaturated", max(window.cpu, in_flight / most) > SATURATED, message)
