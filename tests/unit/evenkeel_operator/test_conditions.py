"""From Deployments and pods to conditions: each with a reason and a sentence that rests while all rests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evenkeel_contract.spec.resources import ServiceCondition
from evenkeel_contract.values import Fault
from evenkeel_operator.core.events import events_for
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.scaling import Scaling
from evenkeel_operator.core.status import (
    MAX_MESSAGE,
    Findings,
    Verdict,
    differs,
    service_status,
    verdicts,
)
from evenkeel_operator.core.workload import WORDS, Workload, newest_template, workload

READY = Workload(wanted=2, exists=True, pods=2, ready=2, settled=True)
STARTING = Workload(wanted=2, exists=True, pods=2, ready=0)
NOT_SCALED = Scaling(2, Note("NotConfigured", "spec.autoscaling is not set."))


def findings(**changes: Any) -> Findings:
    given: dict[str, Any] = {"faults": (), "runs": True, "engines": READY, "routers": READY}
    return Findings(**(given | {"scaling": NOT_SCALED} | changes))


def said(found: Findings) -> dict[str, tuple[str, str]]:
    return {item.type.value: (item.status.value, item.reason) for item in verdicts(found)}


GOOD = {
    "Ready": ("True", "Serving"),
    "EnginesReady": ("True", "AllReady"),
    "RouterReady": ("True", "AllReady"),
    "ScalingActive": ("False", "NotConfigured"),
    "Progressing": ("False", "Stable"),
    "Degraded": ("False", "Healthy"),
    "PluginInactive": ("False", "PolicyActive"),
    "SpecValid": ("True", "Valid"),
}
ABSENT = Workload(wanted=2)
HALF = Workload(wanted=2, exists=True, pods=2, ready=1)
LOST = replace(HALF, failure=Note("NotReady", "pod p was ready"))
CRASHING = Workload(
    wanted=2,
    exists=True,
    pods=2,
    ready=0,
    failure=Note("Crashing", "it ends again and again"),
)
SURGE = Workload(wanted=2, exists=True, pods=3, ready=2)
CRASH = Note("Crashing", "container engine of pod p ended")
STUCK = replace(SURGE, failure=CRASH, stuck=CRASH)
NONE = Workload(wanted=0, exists=True, settled=True)
UNSCHEDULABLE = Workload(wanted=1, exists=True, pods=1, failure=Note("Unschedulable", "no GPU"))

CASES: dict[str, tuple[dict[str, Any], dict[str, tuple[str, str]]]] = {
    "all is well": ({}, {}),
    "an engine does not fit": (
        {"inactive": ("calc_priority moved",)},
        {"PluginInactive": ("True", "Mismatch")},
    ),
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
            "Degraded": ("True", "FewerReplicas"),
        },
    ),
    "one engine of two starts": (
        {"engines": HALF},
        {"EnginesReady": ("False", "Starting"), "Progressing": ("True", "RollingOut")},
    ),
    "one engine of two waits for a router": (
        {"engines": replace(HALF, failure=Note("NotInRotation", "pod p is ready"))},
        {"EnginesReady": ("False", "NotInRotation"), "Progressing": ("True", "RollingOut")},
    ),
    "one engine of two is lost": (
        {"engines": LOST},
        {
            "EnginesReady": ("False", "NotReady"),
            "Progressing": ("True", "RollingOut"),
            "Degraded": ("True", "FewerReplicas"),
        },
    ),
    "the only router finds no node": (
        {"routers": UNSCHEDULABLE},
        {
            "Ready": ("False", "RouterNotReady"),
            "RouterReady": ("False", "Unschedulable"),
            "Progressing": ("True", "RollingOut"),
            "Degraded": ("True", "FewerReplicas"),
        },
    ),
    "new engines crash beside old ones that serve": (
        {"engines": STUCK},
        {"Progressing": ("False", "RolloutStuck"), "Degraded": ("True", "RolloutStuck")},
    ),
    "new routers crash": (
        {"routers": STUCK},
        {"Progressing": ("False", "RolloutStuck"), "Degraded": ("True", "RolloutStuck")},
    ),
    "the first engines crash": (
        {"engines": replace(CRASHING, stuck=CRASH)},
        {
            "Ready": ("False", "EnginesNotReady"),
            "EnginesReady": ("False", "Crashing"),
            "Progressing": ("False", "RolloutStuck"),
            "Degraded": ("True", "RolloutStuck"),
        },
    ),
    "a rollout finds no room": (
        {"engines": replace(SURGE, failure=Note("Unschedulable", "pod p finds no node"))},
        {"Progressing": ("False", "RolloutBlocked")},
    ),
    "no router takes a new one": (
        {"engines": SURGE, "blocked": Note("RolloutBlocked", "pod p")},
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
            "Degraded": ("True", "FewerReplicas"),
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
    "a part of the spec is not fulfilled": (
        {"notes": (Note("ApiMissing", "no such API"),)},
        {"Degraded": ("True", "ApiMissing")},
    ),
}


@pytest.mark.parametrize(("changes", "want"), CASES.values(), ids=CASES)
def test_conditions(changes: dict[str, Any], want: dict[str, tuple[str, str]]) -> None:
    found = said(findings(**changes))
    assert {kind: found[kind] for kind in GOOD} == GOOD | want


KSTATUS = {
    "Current": (
        "all is well", "an engine does not fit", "none is wanted until a request comes",
        "one of a service that may be at zero serves", "a part of the spec is not fulfilled",
    ),
    "InProgress": (
        "nothing was made yet", "engines start", "engines crash", "one engine of two starts",
        "one engine of two waits for a router", "one engine of two is lost", "the only router finds no node",
        "a rollout finds no room", "no router takes a new one", "none is wanted", "the first one starts",
        "the first one finds no node",
    ),
    "Failed": (
        "new engines crash beside old ones that serve", "new routers crash", "the first engines crash",
        "the old spec runs", "no spec runs",
    ),
}  # fmt: skip
"""What a tool that follows kstatus says of each case."""


def kstatus(found: dict[str, tuple[str, str]]) -> str:
    """The rules of kstatus for resources that it does not know (sigs.k8s.io/cli-utils, `checkGenericProperties`)."""
    if found["Reconciling"][0] == "True":
        return "InProgress"
    if found["Stalled"][0] == "True":
        return "Failed"
    return "Current" if found["Ready"][0] == "True" else "InProgress"


@pytest.mark.parametrize(("want", "name"), [(want, name) for want, names in KSTATUS.items() for name in names])  # fmt: skip
def test_tools_that_follow_kstatus_wait_or_fail_as_the_rollout_does(want: str, name: str) -> None:
    found = said(findings(**CASES[name][0]))
    assert kstatus(found) == want
    assert "True" not in (found["Reconciling"][0], found["Stalled"][0]) or want != "Current"


def test_each_case_has_a_kstatus() -> None:
    assert {name for names in KSTATUS.values() for name in names} == CASES.keys()


def test_every_fault_is_named_with_its_path_as_far_as_a_message_goes() -> None:
    faults = tuple(Fault(f"spec.a[{n}]", "is wrong") for n in range(1000))

    def valid_of(*some: Fault) -> Verdict:
        found = verdicts(findings(faults=some))
        return next(one for one in found if one.type is ServiceCondition.SPEC_VALID)

    valid = valid_of(*faults[:2])
    assert valid.message == "spec.a[0]: is wrong; spec.a[1]: is wrong"
    assert len(valid_of(*faults).message) == MAX_MESSAGE


def test_who_crashes_beside_old_engines_is_named_wherever_people_look() -> None:
    messages = {item.type.value: item.message for item in verdicts(findings(engines=STUCK))}
    assert (
        messages["EnginesReady"] == f"2 of 2 engines are ready. New ones are not: {CRASH.message}"
    )
    want = f"The rollout of engines is stuck: {CRASH.message}"
    assert (messages["Progressing"], messages["Degraded"]) == (want, f"{want}.")


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


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return pod("p", containerStatuses=[{"name": "engine", "image": "i:1", "state": state, **more}])


def waiting(reason: str, **more: Any) -> dict[str, Any]:
    message = "back-off 40s restarting"
    return container({"waiting": {"reason": reason, "message": message}}, **more)


NOWHERE = pod(
    "q",
    conditions=[{"type": "PodScheduled", "status": "False", "message": "0/2 nodes have a GPU"}],
)
LOG = "Traceback (most recent call last):\nRuntimeError: CUDA out of memory\n"
KILLED = {"reason": "OOMKilled", "exitCode": 137}
SAID = {"reason": "Error", "exitCode": 1, "message": LOG}
CRASHED = (
    "Crashing",
    "container engine of pod p exited and restarts (Error, exit code 1: RuntimeError: CUDA out of memory).",
)
GONE = {"metadata": {"name": "p", "deletionTimestamp": "x"}}


def unready(since: str, *others_started: str) -> dict[str, Any]:
    """A pod whose containers run, and whose readiness changed at a time."""
    not_ready = {"type": "Ready", "status": "False", "message": "node is gone"}
    found = container({"running": {"startedAt": "2026-01-01T00:00:05Z"}}, ready=True)
    for index, started in enumerate(others_started):
        other = {"name": f"other-{index}", "state": {"running": {"startedAt": started}}}
        found["status"]["containerStatuses"].append({**other, "ready": True})
    found["status"]["conditions"] = [{**not_ready, "lastTransitionTime": since}]
    return found


TROUBLES: dict[str, tuple[list[dict[str, Any]], tuple[str, str] | None]] = {
    "nothing is known": ([pod("p")], None),
    "an image": (
        [waiting("ImagePullBackOff")],
        ("ImageCannotBePulled", "container engine of pod p: the image i:1 cannot be pulled."),
    ),
    "no node": ([NOWHERE], ("Unschedulable", "pod q fits on no node: 0/2 nodes have a GPU")),
    "a crash says more than a queue": (
        [NOWHERE, waiting("CrashLoopBackOff", lastState={"terminated": KILLED})],
        (
            "Crashing",
            "container engine of pod p exited and restarts (OOMKilled, exit code 137; see its log).",
        ),
    ),
    "the first crash of all": ([container({"terminated": SAID})], CRASHED),
    "one that is waited for": (
        [waiting("CrashLoopBackOff", lastState={"terminated": SAID})],
        CRASHED,
    ),
    "one that runs again, for now": (
        [container({"running": {}}, lastState={"terminated": SAID}, ready=False)],
        CRASHED,
    ),
    "one that is ready again": (
        [container({"running": {}}, lastState={"terminated": SAID}, ready=True)],
        None,
    ),
    "what was evicted is replaced": (
        [pod("p", phase="Failed", **container({"terminated": SAID})["status"])],
        None,
    ),
    "what has done its work before the others start": (
        [
            pod(
                "p",
                initContainerStatuses=[{"name": "i", "state": {"terminated": {}}, "ready": True}],
            )
        ],
        None,
    ),
    "one that has not been ready yet": ([unready("2026-01-01T00:00:01Z")], None),
    "one whose second container began again and is not ready yet": (
        [unready("2026-01-01T00:01:00Z", "2026-01-01T00:01:05Z")],
        None,
    ),
    "one that was ready": (
        [unready("2026-01-01T00:01:00Z")],
        ("NotReady", "pod p was ready and no longer is: node is gone"),
    ),
    "a missing Secret": (
        [waiting("CreateContainerConfigError")],
        ("CannotStart", "container engine of pod p: back-off 40s restarting"),
    ),
    "what leaves does not count": ([waiting("ImagePullBackOff") | GONE], None),
}


@pytest.mark.parametrize(("pods", "want"), TROUBLES.values(), ids=TROUBLES)
def test_the_reason_why_pods_are_not_ready(
    pods: list[dict[str, Any]], want: tuple[str, str] | None
) -> None:
    found = workload(deployment(), wanted=1, pods=pods).failure
    assert found == (None if want is None else Note(*want))


@pytest.mark.parametrize(
    ("message", "image"),
    [
        ('Back-off pulling image "r/model:1": not found', "r/model:1"),
        ('failed to pull and unpack image "docker.io/library/i:1-model"', "i:1-model"),
        ('Container image "i:1" is not present with pull policy of Never', "i:1"),
        ("registry is unavailable", "i:1"),
    ],
)
def test_an_image_that_cannot_be_pulled_may_be_that_of_a_volume(message: str, image: str) -> None:
    found = waiting("ErrImagePull")
    found["status"]["containerStatuses"][0]["state"]["waiting"]["message"] = message
    references = ({"image": {"reference": one}} for one in ("r/model:1", "i:1-model"))
    found["spec"] = {"volumes": [{"emptyDir": {}}, *references, {"image": {}}]}
    failure = workload(deployment(), wanted=1, pods=[found]).failure
    assert failure is not None
    assert failure.message.endswith(f": the image {image} cannot be pulled.")


def test_a_long_last_line_is_reported_by_its_end() -> None:
    ended = {"exitCode": 1, "message": "x" * 2000 + " no such file"}
    found = workload(deployment(), wanted=1, pods=[container({"terminated": ended})]).failure
    assert found is not None
    assert found.message.endswith("x no such file).")
    assert len(found.message) < WORDS + 100


def of(template: str, made: str, found: dict[str, Any]) -> dict[str, Any]:
    """A pod of one of two ReplicaSets."""
    metadata = {"name": f"p-{template}", "labels": {"pod-template-hash": template}}
    return found | {"metadata": {**metadata, "creationTimestamp": made}}


OLD_CRASHES = of("old", "2026-01-01T00:00:00Z", container({"terminated": SAID}))
OLD_SERVES = of("old", "2026-01-01T00:00:00Z", pod(""))
NEW_CRASHES = of("new", "2026-01-02T00:00:00Z", container({"terminated": SAID}))
NEW_LOADS = of("new", "2026-01-02T00:00:00Z", pod(""))
OLD_IS_ADDED = of("old", "2026-01-03T00:00:00Z", pod(""))
NEW_WAITS = of("new", "2026-01-02T00:00:00Z", NOWHERE)
SURGING = {**SETTLED, "replicas": 3, "updatedReplicas": 1}
DONE = {"conditions": [{"type": "Progressing", "reason": "NewReplicaSetAvailable"}]}
LATE = {"conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]}
NOT_MADE = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "quota"}]}
ROLLOUTS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str | None]] = {
    "a new pod crashes": (SURGING, [NEW_CRASHES, OLD_SERVES], "Crashing"),
    "a new pod crashes, and a scale-up adds old ones": (
        SURGING,
        [NEW_CRASHES, OLD_SERVES, OLD_IS_ADDED],
        "Crashing",
    ),
    "a pod that a scale-up adds crashes": (
        SURGING,
        [NEW_LOADS, of("old", "2026-01-03T00:00:00Z", container({"terminated": SAID}))],
        None,
    ),
    "a new pod loads": (SURGING, [NEW_LOADS, OLD_SERVES], None),
    "a new pod finds no node": (SURGING, [NEW_WAITS, OLD_SERVES], None),
    "an old pod crashes while new ones come": (SURGING, [NEW_LOADS, OLD_CRASHES], None),
    "none can be made": (SURGING | NOT_MADE, [OLD_SERVES], "PodsRefused"),
    "the deadline is over": (SURGING | LATE, [NEW_LOADS], "RolloutStuck"),
    "a pod crashes after the rollout": (
        SETTLED | {"availableReplicas": 1} | DONE,
        [NEW_CRASHES],
        None,
    ),
    "the next rollout is not seen yet": (
        SURGING | {"observedGeneration": 1} | DONE,
        [NEW_CRASHES],
        "Crashing",
    ),
    "nobody looked at the pods": (SURGING, [], None),
}


@pytest.mark.parametrize(("said", "pods", "want"), ROLLOUTS.values(), ids=ROLLOUTS)
def test_a_rollout_is_stuck_by_what_its_new_pods_cannot_get_over(
    said: dict[str, Any], pods: list[dict[str, Any]], want: str | None
) -> None:
    found = workload(deployment(**said), wanted=2, pods=pods, newest="new").stuck
    assert (found and found.reason) == want


def replica_set(template: str, revision: str, owner: str = "u") -> dict[str, Any]:
    metadata = {
        "name": f"d-{template}",
        "labels": {"pod-template-hash": template},
        "annotations": {"deployment.kubernetes.io/revision": revision},
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    return {"metadata": metadata}


def test_the_newest_template_is_that_of_the_deployment_s_highest_revision() -> None:
    mine = {"metadata": {"name": "d", "uid": "u"}}
    sets = [
        replica_set("a", "9"),
        replica_set("b", "10"),
        replica_set("c", "2"),
        replica_set("z", "99", owner="another"),
    ]
    assert newest_template(sets, mine) == "b"
    assert newest_template([], mine) is None


RAW: dict[str, Any] = {
    "kind": "FairInferenceService",
    "metadata": {"name": "s", "namespace": "n", "generation": 3},
}


def status(found: Findings, raw: dict[str, Any], now: str) -> dict[str, Any]:
    return service_status(
        raw, found, running=None, image=None, available_image=None, host_taken=False, now=now
    )


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
    assert list(events_for(RAW, first)) == []  # that a new service is not ready yet is no news
    raw = RAW | {"status": first}
    half = status(findings(engines=HALF, routers=STARTING), raw, "2026-01-02T00:00:00Z")
    assert list(events_for(raw, half)) == []  # nor one reason after another
    good = status(findings(), raw, "2026-01-02T00:00:00Z")
    assert [(news.reason, news.bad) for news in events_for(raw, good)] == [("Serving", False)]
    raw = RAW | {"status": good}
    assert list(events_for(raw, good)) == []
    bad = status(findings(faults=(Fault("spec.x", "is odd"),)), raw, "2026-01-03T00:00:00Z")
    heard = [(news.reason, news.bad) for news in events_for(raw, bad)]
    assert heard == [("OldSpecRuns", True), ("Invalid", True)]
    raw = RAW | {"status": good}
    lost = status(findings(routers=UNSCHEDULABLE), raw, "2026-01-03T00:00:00Z")
    heard = [(news.reason, news.bad) for news in events_for(raw, lost)]
    assert heard == [("RouterNotReady", True), ("FewerReplicas", True)]


@pytest.mark.parametrize(
    ("old", "new"), [("AsPromised", "Healthy"), ("ApiAbsent", "ApiMissing"), ("Gone", "Healthy")]
)
def test_a_reason_that_an_older_operator_called_otherwise_is_no_event(old: str, new: str) -> None:
    status = "True" if new == "ApiMissing" else "False"
    known = {"type": "Degraded", "status": status, "message": "the same", "reason": old}
    now = {**known, "reason": new, "message": "All objects match the spec."}
    raw = {**RAW, "status": {"conditions": [known]}}
    events = [event.reason for event in events_for(raw, {"conditions": [now]})]
    assert events == ([new] if old == "Gone" else [])
