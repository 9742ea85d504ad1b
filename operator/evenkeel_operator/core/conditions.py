"""The conditions of a FairInferenceService: verdicts with a reason and a sentence (design §3). Pure.

Place in the pass: everything that was found → **conditions** → status. Sentences hold no times and no counts
that change at rest: a status that differs is a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from evenkeel_contract.faults import Fault
from evenkeel_contract.spec import Condition, ConditionStatus, ServiceCondition

from evenkeel_operator.core import reasons
from evenkeel_operator.core.workload import Workload

MAX_MESSAGE = 4096  # bytes would be 32768 at most; nobody reads more than this

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition before it has a time."""

    type: ServiceCondition
    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that is not as asked for, though the service may run: a reason of Degraded."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a pass has found out."""

    faults: tuple[Fault, ...]
    runs: bool
    """Some spec is being carried out: the wanted one, or the last good one."""
    engines: Workload
    routers: Workload
    notes: tuple[Note, ...] = ()
    blocked: Note | None = None
    """Why a rollout does not go on, though all pods are well."""
    wakes: bool = False
    """Without engines, the next request brings one."""
    scaling: Note = Note(reasons.NOT_CONFIGURED, "spec.autoscaling is absent")
    scales: bool = False
    """The built-in scaler sees what it decides by."""


def verdicts(found: Findings) -> tuple[Verdict, ...]:
    """All conditions, in the order in which they are read."""
    return (
        _ready(found),
        _pods(ServiceCondition.ENGINES_READY, found.engines, "engines", wakes=found.wakes),
        _pods(ServiceCondition.ROUTER_READY, found.routers, "routers"),
        _scaling(found),
        _progressing(found),
        _degraded(found),
        _spec_valid(found),
    )


def _ready(found: Findings) -> Verdict:
    ready = ServiceCondition.READY
    if not found.runs:
        return Verdict(ready, FALSE, reasons.INVALID, "the spec has faults, and none ran before")
    if found.routers.ready == 0:
        return Verdict(ready, FALSE, reasons.ROUTER_NOT_READY, _why(found.routers, "routers"))
    if found.engines.ready == 0 and found.wakes:
        return _at_zero(found.engines)
    if found.engines.ready == 0:
        reason = reasons.ENGINES_NOT_READY if found.engines.wanted else reasons.NO_REPLICAS
        return Verdict(ready, FALSE, reason, _why(found.engines, "engines"))
    return Verdict(ready, TRUE, reasons.SERVING, "requests are answered")


def _at_zero(engines: Workload) -> Verdict:
    """Of a service that may be without engines: to have none is as it should be, to have trouble with one is not."""
    ready = ServiceCondition.READY
    if engines.wanted == 0:
        return Verdict(ready, TRUE, reasons.IDLE, "no engine runs; the next request brings one")
    if engines.trouble is None:
        message = "requests wait for the first engine"
        return Verdict(ready, FALSE, reasons.ACTIVATING, message)
    return Verdict(ready, FALSE, reasons.ENGINES_NOT_READY, _why(engines, "engines"))


def _pods(
    condition: ServiceCondition, load: Workload, what: str, *, wakes: bool = False
) -> Verdict:
    if load.wanted == 0 and wakes:
        return Verdict(condition, TRUE, reasons.IDLE, f"no {what} are wanted until a request comes")
    if load.wanted == 0:
        return Verdict(condition, FALSE, reasons.NO_REPLICAS, f"no {what} are wanted")
    if load.is_whole:
        message = f"{load.wanted} of {load.wanted} {what} are ready"
        if load.stuck is not None:  # those of before the rollout
            message = f"{message}; new ones are not: {load.stuck.message}"
        return Verdict(condition, TRUE, reasons.ALL_READY, _cut(message))
    if not load.exists:
        return Verdict(condition, FALSE, reasons.NOT_CREATED, f"no {what} have been made yet")
    reason = load.trouble.reason if load.trouble else reasons.STARTING
    return Verdict(condition, FALSE, reason, _why(load, what))


def _why(load: Workload, what: str) -> str:
    if load.wanted == 0:
        return f"no {what} are wanted"
    count = f"{load.ready} of {load.wanted} {what} are ready"
    return f"{count}: {load.trouble.message}" if load.trouble else count


def _scaling(found: Findings) -> Verdict:
    status = TRUE if found.scales else FALSE
    note = found.scaling
    return Verdict(ServiceCondition.SCALING_ACTIVE, status, note.reason, note.message)


def _progressing(found: Findings) -> Verdict:
    condition = ServiceCondition.PROGRESSING
    moving = [
        what
        for what, load in (("engines", found.engines), ("routers", found.routers))
        if found.runs and not load.settled
    ]
    if not moving:
        return Verdict(condition, FALSE, reasons.STABLE, "what is wanted is there")
    if found.blocked is not None:
        return Verdict(condition, FALSE, found.blocked.reason, found.blocked.message)
    for note in _stuck(found):
        return Verdict(condition, FALSE, note.reason, _cut(note.message))
    for load in (found.engines, found.routers):
        trouble = load.trouble
        # Old pods serve, new ones find no room: only people can make some, or allow fewer meanwhile.
        if trouble is not None and trouble.reason == reasons.UNSCHEDULABLE and load.is_whole:
            message = (
                f"no room to surge: {trouble.message}; make room, or allow rollout.maxUnavailable"
            )
            return Verdict(condition, FALSE, reasons.ROLLOUT_BLOCKED, message)
    return Verdict(condition, TRUE, reasons.ROLLING_OUT, f"{' and '.join(moving)} are rolled out")


def _stuck(found: Findings) -> Iterator[Note]:
    for what, load in (("engines", found.engines), ("routers", found.routers)):
        if found.runs and load.stuck is not None:
            message = f"the rollout of {what} does not go on: {load.stuck.message}"
            yield Note(reasons.ROLLOUT_STUCK, message)


def _degraded(found: Findings) -> Verdict:
    condition = ServiceCondition.DEGRADED
    notes = list(found.notes)
    if found.faults and found.runs:
        notes.insert(0, Note(reasons.OLD_SPEC_RUNS, "the spec has faults; the last good one runs"))
    for what, load in (("engines", found.engines), ("routers", found.routers)):
        if 0 < load.ready < load.wanted:
            notes.append(Note(reasons.FEWER_REPLICAS, _why(load, what)))
    notes += _stuck(found)
    if not notes:
        return Verdict(condition, FALSE, reasons.AS_PROMISED, "nothing that was asked for is amiss")
    message = "; ".join(note.message for note in notes)
    return Verdict(condition, TRUE, notes[0].reason, _cut(message))


def _spec_valid(found: Findings) -> Verdict:
    return spec_verdict(found.faults)


def spec_verdict(faults: Iterable[Fault]) -> Verdict:
    """SpecValid, with every fault and its path."""
    listed = [str(fault) for fault in faults]
    if not listed:
        message = "the spec has no faults"
        return Verdict(ServiceCondition.SPEC_VALID, TRUE, reasons.VALID, message)
    message = _cut("; ".join(listed))
    return Verdict(ServiceCondition.SPEC_VALID, FALSE, reasons.INVALID, message)


def dated(
    verdict: tuple[str, ConditionStatus, str, str],
    before: Sequence[Condition],
    *,
    generation: int,
    now: str,
) -> Condition:
    """A condition with the time at which its status changed last."""
    type_, status, reason, message = verdict
    old = next((condition for condition in before if condition.type == type_), None)
    unchanged = old is not None and old.status is status
    return Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=old.last_transition_time if old and unchanged else now,
        observed_generation=generation,
    )


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
