"""Which replicas enter and leave rotation: readiness gates to open, scale-down candidates to mark. Pure.

The readiness gate `evenkeel.dev/InRotation` makes a rollout wait until a router has the new replica in rotation.
Routers judge replicas by their containers' readiness, so the two do not wait for each other. A gate is opened once
and never closed. Closing it after a failed probe would cause writes at rest.

Marks of candidates are annotations of pods, so the next operator continues where this one stops. A ReplicaSet removes
pods in an order of its own, in which readiness counts before the deletion cost that we set. The order here begins with
the same criteria. Otherwise the ReplicaSet would delete pods that are not marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from evenkeel_contract.adminstate import ReplicasState
from evenkeel_contract.names import DRAIN_ANNOTATION, IN_ROTATION_GATE

from evenkeel_operator.core import reasons
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.workload import (
    COST_ANNOTATION,
    COST_OF_CANDIDATES,
    MARK_PREFIX,
    TIME_FORMAT,
    EnginePod,
)

GATE_PATIENCE: Final = timedelta(seconds=30)
"""How long a replica waits if no router answers. Without routers nothing is served, so waiting longer gains nothing."""
LONGEST_WAIT_S: Final = 30.0
OVERDUE: Final = timedelta(minutes=5)
"""Time after which a ready replica without a router is reported. Usually a router takes it within one or two seconds."""

IN_ROTATION: Final = "InRotation"
NO_ROUTER: Final = "NoRouter"


def openings(
    engines: Iterable[EnginePod], answers: Answers, now: datetime
) -> Iterator[tuple[EnginePod, Note]]:
    """The engines whose gates may be opened now, and why."""
    received = [answer for answer in answers if answer is not None]
    routable = {one.name for answer in received for one in answer.replicas if one.routable}
    for engine in engines:
        if engine.waits_since is None:
            continue
        if engine.name in routable:
            yield engine, Note(IN_ROTATION, "A router sends requests to this replica.")
        elif not received and now - engine.waits_since >= GATE_PATIENCE:
            yield engine, Note(NO_ROUTER, "No router answers, so the gate is opened without one.")


def look_again_s(engines: Iterable[EnginePod], now: datetime) -> float | None:
    """Seconds until routers are queried again about waiting replicas, often at first. None: no replica waits."""
    ages = [(now - engine.waits_since).total_seconds() for engine in engines if engine.waits_since]
    # A tenth of the shortest wait: a router takes most replicas within two seconds.
    return min(LONGEST_WAIT_S, max(1.0, min(ages) / 10)) if ages else None


def overdue(engines: Iterable[EnginePod], now: datetime) -> Note | None:
    """Replicas that no router uses although their containers are ready; no other condition shows them."""
    names = [
        engine.name
        for engine in engines
        if engine.waits_since is not None and now - engine.waits_since >= OVERDUE
    ]
    if not names:
        return None
    message = f"No router sends requests to ready pods: {', '.join(names)}. GET /v1/state of a router has the reason."
    return Note(reasons.ROLLOUT_BLOCKED, message)


def condition(why: Note, now: datetime) -> dict[str, str]:
    """The condition of a pod whose gate is opened."""
    return {
        "type": IN_ROTATION_GATE,
        "status": "True",
        "reason": why.reason,
        "message": why.message,
        "lastTransitionTime": now.strftime(TIME_FORMAT),
    }


GATES: Final = [{"conditionType": IN_ROTATION_GATE}]


LAST_WORDS: Final = "FallbackToLogsOnError"
"""`terminationMessagePolicy`: the kubelet keeps the end of a failed container's log, for conditions. Added together with
the gate."""


def without_gate(manifest: dict[str, Any]) -> dict[str, Any]:
    """The Deployment as operators before 0.2 built it."""
    template = manifest["spec"]["template"]
    pod = {name: value for name, value in template["spec"].items() if name != "readinessGates"}
    pod["containers"] = [_silent(container) for container in pod["containers"]]
    return {**manifest, "spec": {**manifest["spec"], "template": {**template, "spec": pod}}}


def _silent(container: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in container.items()
        if (name, value) != ("terminationMessagePolicy", LAST_WORDS)
    }


DRAIN_PATIENCE: Final = timedelta(seconds=10)
"""How long routers may take to stop sending to a candidate. Their watch takes milliseconds; a router that does not answer
must not block the scale-down. Requests that it still sends are finished."""
RELEASED: Final = frozenset({"draining", "terminating", "ended"})
"""Why a router sends nothing there, for good (`evenkeel_router/cluster/endpoints.py`)."""

Answers = Sequence[ReplicasState | None]
"""Report of every ready router; None: it did not answer."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What would be lost with a replica."""

    requests: int = 0
    """Requests in flight at the replica, from all routers."""
    blocks: int = 0
    """Prompt tokens that routers expect in the replica's cache."""


@dataclass(frozen=True, slots=True)
class ScaleDownStep:
    """The result of the decision."""

    mark: tuple[EnginePod, ...] = ()
    unmark: tuple[EnginePod, ...] = ()
    wait: bool = False
    """The Deployment keeps its replicas for now."""


def losses(answers: Answers) -> Mapping[str, Loss]:
    """Replica → what would be lost with it."""
    sent: Counter[str] = Counter()
    reported: dict[str, int] = {}
    blocks: Counter[str] = Counter()
    for answer in answers:
        for replica in answer.replicas if answer else ():
            sent[replica.name] += replica.in_flight
            # Every router receives the same reports, some later than others.
            running = replica.waiting + replica.running
            reported[replica.name] = max(running, reported.get(replica.name, 0))
            blocks[replica.name] += replica.prefix_blocks
    return {
        name: Loss(max(sent[name], running), blocks[name]) for name, running in reported.items()
    }


def next_step(
    engines: Sequence[EnginePod],
    *,
    wanted: int,
    shrinking: bool,
    answers: Answers,
    cordoned: Collection[str],
    now: datetime,
) -> ScaleDownStep:
    """`shrinking`: `spec.replicas` of the Deployment is still above `wanted`, set by the operator."""
    surplus = max(0, len(engines) - wanted)
    chosen = choose_candidates(engines, surplus, known=losses(answers), cordoned=cordoned)
    unmark = tuple(engine for engine in engines if engine.mark and engine not in chosen)
    # During a rollout the Deployment distributes the removal over its ReplicaSets. A shrink to 0 needs no choice.
    of_one_kind = len({engine.template for engine in engines}) == 1
    if not (shrinking and wanted and chosen and of_one_kind):
        return ScaleDownStep(unmark=unmark)
    mark = tuple(engine for engine in chosen if engine.mark is None)
    wait = bool(mark) or any(_is_held(engine, answers, now) for engine in chosen)
    return ScaleDownStep(mark, unmark, wait)


def choose_candidates(
    engines: Sequence[EnginePod],
    count: int,
    *,
    known: Mapping[str, Loss],
    cordoned: Collection[str],
) -> tuple[EnginePod, ...]:
    """The `count` engines whose loss costs least."""

    def price(engine: EnginePod) -> tuple[object, ...]:
        loss = known.get(engine.name, Loss())
        return (
            # As the ReplicaSet has it, …
            bool(engine.node),
            engine.running,
            engine.ready,
            # … already out of rotation, …
            engine.mark is None,
            not engine.drained_by_hand,
            # … on a cordoned node, …
            engine.node not in cordoned,
            # … and its load. Requests in flight count before cached tokens, which can be computed again.
            loss.requests,
            loss.blocks,
            engine.name,
        )

    return tuple(sorted(engines, key=price)[:count])


def marked(engine: EnginePod, now: datetime) -> dict[str, str]:
    """The annotations of a candidate."""
    cost = {COST_ANNOTATION: COST_OF_CANDIDATES}
    if engine.drained_by_hand:  # it is already unschedulable, and the mark is not the operator's
        return cost
    return {DRAIN_ANNOTATION: f"{MARK_PREFIX}{now.strftime(TIME_FORMAT)}", **cost}


def _is_held(engine: EnginePod, answers: Answers, now: datetime) -> bool:
    """Whether a router may still send requests to the candidate."""
    since = engine.mark.since if engine.mark else None
    # Holds also if the clock that wrote the mark is ahead.
    if since is None or abs(now - since) >= DRAIN_PATIENCE:
        return False
    return not all(answer is not None and _has_released(answer, engine.name) for answer in answers)


def _has_released(answer: ReplicasState, name: str) -> bool:
    return all(one.unschedulable_reason in RELEASED for one in answer.replicas if one.name == name)
