"""Choose the scale-down candidates, and decide when the Deployment may shrink. Pure.

Marks are annotations of pods, so the next operator continues where this one stops.

A ReplicaSet removes pods in an order of its own, in which readiness counts before the deletion cost that we set. The
order here begins with the same criteria. Otherwise the ReplicaSet would delete pods that are not marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from evenkeel_contract.adminstate import ReplicasState
from evenkeel_contract.names import DRAIN_ANNOTATION

from evenkeel_operator.core.engines import (
    COST_ANNOTATION,
    COST_OF_CANDIDATES,
    MARK_PREFIX,
    TIME_FORMAT,
    Engine,
)

PATIENCE: Final = timedelta(seconds=10)
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
    """In flight, at all routers."""
    blocks: int = 0
    """Prompt tokens that routers expect in the replica's cache."""


NOTHING: Final = Loss()


@dataclass(frozen=True, slots=True)
class ScaleDownStep:
    """The result of the decision."""

    mark: tuple[Engine, ...] = ()
    unmark: tuple[Engine, ...] = ()
    wait: bool = False
    """The Deployment keeps its replicas for now."""


def losses(answers: Answers) -> Mapping[str, Loss]:
    """By replica."""
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
    engines: Sequence[Engine],
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
    engines: Sequence[Engine], count: int, *, known: Mapping[str, Loss], cordoned: Collection[str]
) -> tuple[Engine, ...]:
    """The `count` engines whose loss costs least."""

    def price(engine: Engine) -> tuple[object, ...]:
        loss = known.get(engine.name, NOTHING)
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


def marked(engine: Engine, now: datetime) -> dict[str, str]:
    """The annotations of a candidate."""
    cost = {COST_ANNOTATION: COST_OF_CANDIDATES}
    if engine.drained_by_hand:  # it is already unschedulable, and the mark is not the operator's
        return cost
    return {DRAIN_ANNOTATION: f"{MARK_PREFIX}{now.strftime(TIME_FORMAT)}", **cost}


def _is_held(engine: Engine, answers: Answers, now: datetime) -> bool:
    """Whether a router may still send requests to the candidate."""
    since = engine.mark.since if engine.mark else None
    # Holds also if the clock that wrote the mark is ahead.
    if since is None or abs(now - since) >= PATIENCE:
        return False
    return not all(answer is not None and _has_released(answer, engine.name) for answer in answers)


def _has_released(answer: ReplicasState, name: str) -> bool:
    return all(one.unschedulable_reason in RELEASED for one in answer.replicas if one.name == name)
