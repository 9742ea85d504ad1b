"""From Deployments and pods to conditions: each with a reason and a sentence that rests while all rests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.faults import Fault
from evenkeel_operator.core.conditions import MAX_MESSAGE, Findings, Note, verdicts
from evenkeel_operator.core.status import differs, service_status
from evenkeel_operator.core.transitions import worth_telling
from evenkeel_operator.core.workload import Trouble, Workload, workload

READY = Workload(wanted=2, exists=True, pods=2, ready=2, settled=True)
STARTING = Workload(wanted=2, exists=True, pods=2, ready=0)


def findings(**changes: Any) -> Findings:
    given: dict[str, Any] = {"faults": (), "runs": True, "engines": READY, "routers": READY}
    return Findings(**(given | changes))


def said(found: Findings) -> dict[str, tuple[str, str]]:
    return {item.type.value: (item.status.value, item.reason) for item in verdicts(found)}


GOOD = {
    "Ready": ("True", "Serving"),
    "EnginesReady": ("True", "AllReady"),
    "RouterReady": ("True", "AllReady"),
    "ScalingActive": ("False", "NotConfigured"),
    "Progressing": ("False", "Stable"),
    "Degraded": ("False", "AsPromised"),
    "SpecValid": ("True", "Valid"),
}
ABSENT = Workload(wanted=2)
HALF = Workload(wanted=2, exists=True, pods=2, ready=1)
CRASHING = Workload(
    wanted=2, exists=True, pods=2, ready=0, trouble=Trouble("Crashing", "it ends again and again")
)
STUCK = Workload(
    wanted=2, exists=True, pods=3, ready=2, trouble=Trouble("RolloutStuck", "no progress")
)
NONE = Workload(wanted=0, exists=True, settled=True)
UNSCHEDULABLE = Workload(wanted=1, exists=True, pods=1, trouble=Trouble("Unschedulable", "no GPU"))

CASES: dict[str, tuple[dict[str, Any], dict[str, tuple[str, str]]]] = {
    "all is well": ({}, {}),
    "nothing was made yet": (
        {"engines": ABSENT, "routers": ABSENT},
        {
            "Ready": ("False", "RouterNotReady"),
            "EnginesReady": ("False", "NotCreated"),
            "RouterReady": ("False", "NotCreated"),
            "Progressing": ("True", "RollingOut"),
        },
    ),
    "engines start": (
        {"engines": STARTING},
        {
            "Ready": ("False", "EnginesNotReady"),
            "EnginesReady": ("False", "Starting"),
            "Progressing": ("True", "RollingOut"),
        },
    ),
    "engines crash": (
        {"engines": CRASHING},
        {
            "Ready": ("False", "EnginesNotReady"),
            "EnginesReady": ("False", "Crashing"),
            "Progressing": ("True", "RollingOut"),
        },
    ),
    "one engine of two serves": (
        {"engines": HALF},
        {
            "EnginesReady": ("False", "Starting"),
            "Progressing": ("True", "RollingOut"),
            "Degraded": ("True", "FewerReplicas"),
        },
    ),
    "a rollout is stuck": ({"engines": STUCK}, {"Progressing": ("False", "RolloutStuck")}),
    "a rollout finds no room": (
        {"engines": replace(STUCK, trouble=Trouble("Unschedulable", "pod p finds no node"))},
        {"Progressing": ("False", "RolloutBlocked")},
    ),
    "no router takes a new one": (
        {"engines": STUCK, "blocked": Note("RolloutBlocked", "pod p")},
        {"Progressing": ("False", "RolloutBlocked")},
    ),
    "none is wanted": (
        {"engines": NONE},
        {"Ready": ("False", "NoReplicas"), "EnginesReady": ("False", "NoReplicas")},
    ),
    "none is wanted until a request comes": (
        {"engines": NONE, "wakes": True},
        {"Ready": ("True", "Idle"), "EnginesReady": ("True", "Idle")},
    ),
    "the first one starts": (
        {"engines": Workload(wanted=1, exists=True, pods=1), "wakes": True},
        {
            "Ready": ("False", "Activating"),
            "EnginesReady": ("False", "Starting"),
            "Progressing": ("True", "RollingOut"),
        },
    ),
    "the first one finds no node": (
        {"engines": UNSCHEDULABLE, "wakes": True},
        {
            "Ready": ("False", "EnginesNotReady"),
            "EnginesReady": ("False", "Unschedulable"),
            "Progressing": ("True", "RollingOut"),
        },
    ),
    "one of a service that may be at zero serves": ({"wakes": True}, {}),
    "the old spec runs": (
        {"faults": (Fault("spec.x", "is wrong"),)},
        {"Degraded": ("True", "OldSpecRuns"), "SpecValid": ("False", "Invalid")},
    ),
    "no spec runs": (
        {"faults": (Fault("spec.x", "is wrong"),), "runs": False, "engines": NONE, "routers": NONE},
        {
            "Ready": ("False", "Invalid"),
            "EnginesReady": ("False", "NoReplicas"),
            "RouterReady": ("False", "NoReplicas"),
            "SpecValid": ("False", "Invalid"),
        },
    ),
    "something is amiss": (
        {"notes": (Note("ApiAbsent", "no such API"),)},
        {"Degraded": ("True", "ApiAbsent")},
    ),
}


@pytest.mark.parametrize(("changes", "want"), CASES.values(), ids=CASES)
def test_conditions(changes: dict[str, Any], want: dict[str, tuple[str, str]]) -> None:
    assert said(findings(**changes)) == GOOD | want


def test_every_fault_is_named_with_its_path_as_far_as_a_message_goes() -> None:
    faults = tuple(Fault(f"spec.a[{n}]", "is wrong") for n in range(1000))
    valid = verdicts(findings(faults=faults[:2]))[-1]
    assert valid.message == "spec.a[0]: is wrong; spec.a[1]: is wrong"
    assert len(verdicts(findings(faults=faults))[-1].message) == MAX_MESSAGE


def deployment(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "d", "generation": 2}, "status": status}


SETTLED = {
    "observedGeneration": 2,
    "replicas": 2,
    "readyReplicas": 2,
    "updatedReplicas": 2,
    "availableReplicas": 2,
}


@pytest.mark.parametrize(
    "change",
    [
        {"observedGeneration": 1},
        {"replicas": 3},
        {"updatedReplicas": 1},
        {"availableReplicas": 1},
    ],
)
def test_a_deployment_is_settled_when_all_of_it_is_new_and_there(change: dict[str, int]) -> None:
    assert workload(deployment(**SETTLED), wanted=2).settled
    assert not workload(deployment(**SETTLED | change), wanted=2).settled
    assert not workload(None, wanted=2).settled


def pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": status}


def waiting(reason: str, **more: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "back-off 40s restarting"}}
    return pod(
        "p",
        containerStatuses=[{"name": "engine", "image": "i:1", "state": state, **more}],
    )


NOWHERE = pod(
    "q",
    conditions=[{"type": "PodScheduled", "status": "False", "message": "0/2 nodes have a GPU"}],
)
ENDED = {"lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
TROUBLES: dict[str, tuple[list[dict[str, Any]], tuple[str, str] | None]] = {
    "nothing is known": ([pod("p")], None),
    "an image": (
        [waiting("ImagePullBackOff")],
        ("ImageCannotBePulled", "container engine of pod p: i:1 cannot be pulled"),
    ),
    "no node": ([NOWHERE], ("Unschedulable", "pod q finds no node: 0/2 nodes have a GPU")),
    "a crash says more than a queue": (
        [NOWHERE, waiting("CrashLoopBackOff", **ENDED)],
        (
            "Crashing",
            "container engine of pod p ends again and again (OOMKilled, exit code 137); see its log",
        ),
    ),
    "a missing Secret": (
        [waiting("CreateContainerConfigError")],
        ("CannotStart", "container engine of pod p: back-off 40s restarting"),
    ),
    "what leaves does not count": (
        [waiting("ImagePullBackOff") | {"metadata": {"name": "p", "deletionTimestamp": "x"}}],
        None,
    ),
}


@pytest.mark.parametrize(("pods", "want"), TROUBLES.values(), ids=TROUBLES)
def test_the_reason_why_pods_are_not_ready(
    pods: list[dict[str, Any]], want: tuple[str, str] | None
) -> None:
    found = workload(deployment(), wanted=1, pods=pods).trouble
    assert found == (None if want is None else Trouble(*want))


RAW: dict[str, Any] = {
    "kind": "FairInferenceService",
    "metadata": {"name": "s", "namespace": "n", "generation": 3},
}


def status(found: Findings, raw: dict[str, Any], now: str) -> dict[str, Any]:
    return service_status(raw, found, running=None, image=None, available_image=None, now=now)


def test_a_condition_keeps_the_time_at_which_it_changed() -> None:
    first = status(findings(engines=STARTING), RAW, "2026-01-01T00:00:00Z")
    again = status(findings(engines=CRASHING), RAW | {"status": first}, "2026-01-02T00:00:00Z")
    by_type = {item["type"]: item for item in again["conditions"]}
    assert by_type["EnginesReady"]["reason"] == "Crashing"
    assert by_type["EnginesReady"]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    good = status(findings(), RAW | {"status": again}, "2026-01-03T00:00:00Z")
    by_type = {item["type"]: item for item in good["conditions"]}
    assert by_type["EnginesReady"]["lastTransitionTime"] == "2026-01-03T00:00:00Z"


def test_a_status_is_written_only_where_it_says_something_else() -> None:
    said_now = status(findings(), RAW, "2026-01-01T00:00:00Z")
    raw = RAW | {"status": said_now}
    assert not differs(status(findings(), raw, "2026-01-02T00:00:00Z"), raw)
    assert differs(status(findings(engines=HALF), raw, "2026-01-02T00:00:00Z"), raw)
    theirs = {"type": "Costly", "status": "True", "reason": "X", "message": ""}
    shared = {**said_now, "conditions": [*said_now["conditions"], theirs], "fairness": {}}
    assert not differs(said_now, RAW | {"status": shared})
    assert differs(said_now, RAW)


def test_people_hear_of_what_is_new_and_of_nothing_twice() -> None:
    first = status(findings(engines=STARTING), RAW, "2026-01-01T00:00:00Z")
    assert list(worth_telling(RAW, first)) == []  # that a new service is not ready yet is no news
    raw = RAW | {"status": first}
    good = status(findings(), raw, "2026-01-02T00:00:00Z")
    assert [(news.reason, news.bad) for news in worth_telling(raw, good)] == [("Serving", False)]
    raw = RAW | {"status": good}
    assert list(worth_telling(raw, good)) == []
    bad = status(findings(faults=(Fault("spec.x", "is odd"),)), raw, "2026-01-03T00:00:00Z")
    heard = [(news.reason, news.bad) for news in worth_telling(raw, bad)]
    assert heard == [("OldSpecRuns", True), ("Invalid", True)]
