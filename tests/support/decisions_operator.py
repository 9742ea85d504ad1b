"""Decisions of the operator's core over drawn inputs: sizes, rotation, pods, conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from typing import Any

from evenkeel_contract.adminstate import ReplicasState, ReplicaState
from evenkeel_contract.names import (
    COMPONENT_LABEL,
    DRAIN_ANNOTATION,
    ENGINE_COMPONENT,
    ENGINE_KEY_LABEL,
    IN_ROTATION_GATE,
)
from evenkeel_contract.routerconfig import ClientConfig, TenantConfig
from evenkeel_contract.spec.autoscaling import (
    Autoscaling,
    Behavior,
    Prometheus,
    ScaleDownRules,
    ScaleUpRules,
    ScalingPolicy,
    ScalingPolicyType,
    SelectPolicy,
    Targets,
)
from evenkeel_contract.values import CountOrPercent, Duration, Fault, Quantity
from evenkeel_operator.core import reasons
from evenkeel_operator.core.events import events_for
from evenkeel_operator.core.objects import OPTIONAL_KINDS, differences
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.recommendation import (
    AGE,
    ASKED,
    IN_FLIGHT,
    QUEUE,
    SATURATED,
    SEEN,
    SERVICE_SERIES_LABEL,
    TTFT,
    WAITING,
    Asked,
    Fleet,
    Measurements,
    Sample,
    demand_of,
    measurements,
    parts_of,
    queries,
    recommend,
    without_series,
)
from evenkeel_operator.core.records import Monitoring
from evenkeel_operator.core.rotation import (
    choose_candidates,
    look_again_s,
    losses,
    marked,
    next_step,
    openings,
    overdue,
)
from evenkeel_operator.core.scaling import (
    History,
    Recommendation,
    Scaling,
    Terms,
    apply_behavior,
    started,
    step,
    surged,
)
from evenkeel_operator.core.status import Findings, verdicts
from evenkeel_operator.core.workload import (
    COST_ANNOTATION,
    COST_OF_CANDIDATES,
    MARK_PREFIX,
    TIME_FORMAT,
    EnginePod,
    Mark,
    Workload,
    all_use_key,
    engine_of,
    external_workload,
    workload,
)
from evenkeel_operator.desired import build_all
from evenkeel_operator.manifests.context import BuildContext

from tests.support.build_contexts import subject_of
from tests.support.crd_documents import EXTERNAL, POOLED, SCALED, SERVICE
from tests.support.decisions import draws, row, text

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
PROMETHEUS = Prometheus(url="http://prometheus:9090")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


# Sizes.


def _policies(rng: Random) -> tuple[ScalingPolicy, ...]:
    return tuple(
        ScalingPolicy(
            type=rng.choice(list(ScalingPolicyType)),
            value=rng.choice((1, 3, 50, 100, 150)),
            period_seconds=rng.choice((15, 60)),
        )
        for _ in range(rng.choice((1, 1, 2)))
    )


def _autoscaling(rng: Random) -> Autoscaling:
    up, down = (
        rule(
            stabilization_window_seconds=rng.choice((0, 30, 60)),
            select_policy=rng.choice((*SelectPolicy, SelectPolicy.MAX)),
            policies=_policies(rng),
        )
        for rule in (ScaleUpRules, ScaleDownRules)
    )
    return Autoscaling(
        min_replicas=rng.choice((0, 1, 2)),
        max_replicas=rng.choice((6, 20)),
        prometheus=PROMETHEUS,
        behavior=Behavior(scale_up=up, scale_down=down),
    )


def behaviour() -> Iterator[str]:
    """Recommendations every 15 s, and the sizes and reasons that windows, policies and bounds make of them."""
    for seed in range(60):
        rng = Random(seed)
        scaling, history, present = _autoscaling(rng), History(), rng.choice((0, 1, 4, 8, 21))
        recommended, decided = [], []
        for now_s in range(0, 180, 15):
            wanted = rng.choice((0, 1, 2, 3, 5, 8, 13))
            one = Recommendation(wanted, "Demand")
            answer, history = apply_behavior(scaling, history, one, present=present, now_s=now_s)
            recommended.append(wanted)
            decided.append(
                f"{answer.replicas}{'' if answer.reason == 'Demand' else answer.reason[:2]}"
            )
            present = answer.replicas
        rules = (scaling.behavior.scale_up, scaling.behavior.scale_down)
        limits = " | ".join(
            f"{rule.stabilization_window_seconds}s {rule.select_policy.value} "
            + ",".join(f"{p.value}{p.type.value[:3]}/{p.period_seconds}" for p in rule.policies)
            for rule in rules
        )
        yield f"{scaling.min_replicas}..{scaling.max_replicas} {limits}: {text(recommended)} => {' '.join(decided)}"


TENANTS = (
    TenantConfig(
        namespace="ns",
        name="acme",
        weight=4,
        clients=(ClientConfig(name="chat", weight=3), ClientConfig(name="batch")),
        default_client_weight=2,
    ),
    TenantConfig(namespace="ns", name="beta", weight=1, default_client_weight=5),
)
CLIENTS = (
    ("acme", "chat"),
    ("acme", "batch"),
    ("acme", "x"),
    ("acme", "other"),
    ("beta", "y"),
    ("gone", "z"),
)


def _asked(rng: Random) -> tuple[Asked, ...]:
    return tuple(
        Asked(*client, rng.choice((0.0, 100.0, 900.0)), rng.choice((0.0, 3000.0)))
        for client in rng.sample(CLIENTS, rng.choice((0, 1, 3)))
    )


def _duration(rng: Random) -> Duration | None:
    return rng.choice((None, Duration.from_plain("1s"), Duration.from_plain("2s")))


def sizes() -> Iterator[str]:
    """One recommendation each: demand, latency and what is known of a replica's capacity."""
    for seed in range(120):
        rng = Random(seed)
        targets = Targets(
            utilization_percent=rng.choice((50, 75)),
            queue_time=_duration(rng),
            ttft_p95=_duration(rng),
            service_per_replica=rng.choice((None, Quantity.from_plain("200"))),
        )
        scaling = Autoscaling(
            max_replicas=10,
            max_replicas_per_client=CountOrPercent.from_plain(rng.choice((3, "50%", "100%"))),
            prometheus=PROMETHEUS,
            targets=targets,
        )
        seen = Measurements(
            asked=_asked(rng),
            in_flight=rng.choice((0.0, 2.0)),
            seen_per_s=rng.choice((None, 0.0, 150.0)),
            saturated_per_s=rng.choice((None, 0.0, 250.0)),
            queue_s=rng.choice((None, 1.0, 1.1, 1.2, 3.0, 9.0)),
            ttft_p95_s=rng.choice((None, 2.0, 2.3, 5.0)),
        )
        parts = parts_of(TENANTS[: rng.choice((0, 1, 2))])
        fleet = Fleet(wanted=rng.choice((0, 1, 4, 8)), ready=rng.choice((0, 1, 4)))
        demand = demand_of(seen.asked, parts, usable_per_s=150.0, cap_replicas=2.0)
        shown = {
            "fleet": fleet,
            "targets": targets,
            "cap": scaling.max_replicas_per_client.of(10),
            "seen": seen,
            "longest": seen.longest_s,
            "parts": [parts.client(*client) for client in CLIENTS],
            "demand": demand,
        }
        yield row(shown, recommend(scaling, seen, parts, fleet))


def scaler() -> Iterator[str]:
    """The scaler's steps, every 15 s: with and without measurements, while requests wait for a first replica."""
    for seed in range(40):
        rng = Random(seed)
        scaling, now_s = _autoscaling(rng), 0.0
        state = started(rng.choice((0, 1, 5)), now_s=now_s)
        steps = []
        for _ in range(10):
            now_s += rng.choice((15.0, 120.0, 420.0))
            seen: Measurements | Note = Measurements(
                asked=(Asked("gone", "z", rng.choice((0.0, 300.0)), 0.0),),
                saturated_per_s=100.0,
                queue_s=rng.choice((None, 2.0, 400.0)),
            )
            if not rng.randrange(4):
                seen = Note(reasons.NO_DATA, "nothing")
            terms = Terms(
                scaling=scaling, ready=rng.choice((0, 1, 3)), activation=not rng.randrange(3)
            )
            state, decision = step(state, terms, seen, now_s=now_s)
            steps.append(f"{decision.replicas}{decision.reason}{'' if decision.active else '!'}")
        yield f"{seed}: {' '.join(steps)} ready={text(state.ready)}"


def prometheus_answers() -> Iterator[str]:
    """What Prometheus answered, as measurements or as the reason that there are none."""
    values = (None, 0.0, 2.5, float("nan"), float("inf"))
    drawn = draws(
        5,
        80,
        **{AGE: (None, 0.0, 180.0, 180.1), ASKED: values[:3], WAITING: values, IN_FLIGHT: values},
        **{SEEN: values, SATURATED: values, QUEUE: values[:4], TTFT: values[:4]},
    )
    for one in drawn:
        labels = {"tenant": "acme", "client": "chat"}
        answers = {name: [Sample(labels, v)] for name, v in one.items() if v is not None}
        yield row(one, measurements(answers))
    some = {"namespace": "ns", SERVICE_SERIES_LABEL: "svc"}
    for listed in (
        [],
        [some],
        [{}],
        [{"namespace": "ns"}],
        [{SERVICE_SERIES_LABEL: "svc"}],
        [{"namespace": "x"}],
    ):
        yield row(
            {"labels": listed}, without_series([Sample(one, 1.0) for one in listed], "ns", "svc")
        )
    second = Duration.from_plain("1s")
    for targets in (
        Targets(),
        Targets(queue_time=second),
        Targets(ttft_p95=second, service_per_replica=Quantity.from_plain("10")),
    ):
        scaling = Autoscaling(max_replicas=3, prometheus=PROMETHEUS, targets=targets)
        yield from (f"{name}: {query}" for name, query in queries("ns", "svc", scaling).items())


# Rotation.


def _engines(rng: Random) -> list[EnginePod]:
    marks = (None, None, None, Mark(None), Mark(ago(9.9)), Mark(ago(10)), Mark(ago(-10)))
    count = rng.choice((1, 2, 3, 4))
    return [
        EnginePod(
            name=f"p{n}",
            uid=str(n),
            node=rng.choice(("", "n1", "n2")),
            template=rng.choice(("a", "a", "a", "b")),
            running=bool(rng.randrange(4)),
            ready=bool(rng.randrange(4)),
            waits_since=rng.choice(
                (None, None, ago(2), ago(29), ago(30), ago(299), ago(300), ago(5000))
            ),
            drained_by_hand=not rng.randrange(5),
            mark=rng.choice(marks),
        )
        for n in range(count)
    ]


def _answers(rng: Random) -> list[ReplicasState | None]:
    def replica(n: int) -> ReplicaState:
        return ReplicaState(
            name=f"p{n}",
            url="http://p",
            routable=bool(rng.randrange(2)),
            unschedulable_reason=rng.choice(("", "draining", "ended", "other")),
            in_flight=rng.choice((0, 1, 5)),
            running=rng.choice((0, 2)),
            waiting=rng.choice((0, 3)),
            prefix_blocks=rng.choice((0, 7)),
        )

    def answer() -> ReplicasState:
        return ReplicasState(
            version=1, replicas=tuple(replica(n) for n in range(rng.choice((2, 4))))
        )

    return [None if not rng.randrange(4) else answer() for _ in range(rng.choice((0, 1, 2)))]


def rotation() -> Iterator[str]:
    """Gates to open, pods to mark and unmark, and when to look again."""
    for seed in range(150):
        rng = Random(seed)
        engines, answers = _engines(rng), _answers(rng)
        cordoned, wanted = rng.choice(((), ("n1",))), rng.choice((0, 1, 2, 3))
        known = losses(answers)
        now_step = next_step(
            engines,
            wanted=wanted,
            shrinking=bool(rng.randrange(4)),
            answers=answers,
            cordoned=cordoned,
            now=NOW,
        )
        opened = [f"{one.name}:{why.reason}" for one, why in openings(engines, answers, NOW)]
        chosen = choose_candidates(engines, 2, known=known, cordoned=cordoned)
        late = overdue(engines, NOW)
        yield (
            f"{seed}: open {text(opened)} mark {text([e.name for e in now_step.mark])} "
            f"unmark {text([e.name for e in now_step.unmark])} wait {now_step.wait} "
            f"choose {text([e.name for e in chosen])} again {text(look_again_s(engines, NOW))} "
            f"late {'-' if late is None else late.message[41:60]} loss {text(known)} "
            f"annotations {sorted(marked(engines[0], NOW).values())}"
        )
    for count, node, leaving in (
        (1, "n1", False),
        (1, "n1", True),
        (1, "n2", False),
        (2, "n1", False),
    ):
        metadata = {"name": "p", **({"deletionTimestamp": "x"} if leaving else {})}
        scaling = Scaling(count, Note("Scaling", ""))
        pods = [{"metadata": metadata, "spec": {"nodeName": node}}]
        yield row(
            {"of": count, "node": node, "leaving": leaving}, surged(scaling, pods, ["n1"]).replicas
        )


# Pods and conditions.


def _container(rng: Random) -> dict[str, Any]:
    ended = {
        "exitCode": 3,
        "reason": "OOMKilled",
        "message": rng.choice(("", "a\nlast ", "x" * 301)),
    }
    waiting = {
        "reason": rng.choice(("ImagePullBackOff", "CreateContainerError", "CrashLoopBackOff")),
        "message": "why",
    }
    states: tuple[dict[str, Any], ...] = (
        {"running": {"startedAt": "2026-01-31T11:00:00Z"}},
        {"running": {"startedAt": "2026-01-31T11:00:00Z"}},
        {"waiting": waiting},
        {"terminated": ended},
    )
    return {
        "name": "engine",
        "image": "image:1",
        "ready": bool(rng.randrange(2)),
        "state": rng.choice(states),
        "lastState": rng.choice(({}, {}, {"terminated": ended})),
    }


def _pod(rng: Random, n: int) -> dict[str, Any]:
    def status(*of: str) -> str:
        return rng.choice(of)

    times = ("2026-01-31T10:59:59Z", "2026-01-31T11:00:00Z", "2026-01-31T11:00:01Z", "bad")
    conditions = [
        {"type": "PodScheduled", "status": status("True", "True", "False"), "message": "no GPU"},
        {
            "type": "Ready",
            "status": status("True", "False"),
            "lastTransitionTime": rng.choice(times),
            "message": "probe",
        },
        {
            "type": "ContainersReady",
            "status": status("True", "False"),
            "lastTransitionTime": rng.choice(times),
        },
        {"type": IN_ROTATION_GATE, "status": status("True", "False")},
    ]
    mark = f"{MARK_PREFIX}{NOW.strftime(TIME_FORMAT)}"
    annotations = (
        {},
        {},
        {DRAIN_ANNOTATION: "by hand"},
        {DRAIN_ANNOTATION: mark},
        {COST_ANNOTATION: COST_OF_CANDIDATES},
    )
    gates = ([], [{"conditionType": IN_ROTATION_GATE}])
    return {
        "metadata": {
            "name": f"p{n}",
            "uid": str(n),
            "labels": {
                COMPONENT_LABEL: rng.choice((ENGINE_COMPONENT, ENGINE_COMPONENT, "router")),
                "pod-template-hash": rng.choice("ab"),
            },
            "annotations": rng.choice(annotations),
            **rng.choice(({}, {}, {}, {"deletionTimestamp": "x"})),
        },
        "spec": {"nodeName": rng.choice(("", "n1")), "readinessGates": rng.choice(gates)},
        "status": {
            "phase": status("Running", "Running", "Running", "Pending", "Failed"),
            "conditions": rng.sample(conditions, rng.choice((3, 4, 4))),
            "containerStatuses": [_container(rng)],
        },
    }


def _deployment(rng: Random) -> dict[str, Any]:
    conditions = [
        {
            "type": "Progressing",
            "reason": rng.choice(
                ("NewReplicaSetAvailable", "ProgressDeadlineExceeded", "ReplicaSetUpdated")
            ),
        },
        {
            "type": "ReplicaFailure",
            "status": rng.choice(("True", "False", "False")),
            "message": "quota",
        },
    ]
    fields = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas")
    return {
        "metadata": {"name": "d", "generation": 2},
        "status": {
            **{name: rng.choice((1, 2, 2, 3)) for name in fields},
            "observedGeneration": rng.choice((1, 2, 2)),
            "conditions": conditions,
        },
    }


def pods() -> Iterator[str]:
    """Deployments with their pods: what is settled, what fails, what is stuck."""
    for seed in range(160):
        rng = Random(seed)
        listed = [_pod(rng, n) for n in range(rng.choice((0, 1, 1, 2)))]
        found = workload(
            _deployment(rng), wanted=2, pods=listed, newest=rng.choice((None, "a", "a"))
        )
        engines = [engine_of(pod) for pod in listed]
        yield f"{seed}: {text(found)} whole={found.is_whole} lacks={found.lacks_pods} {text(engines)}"[
            :600
        ]
    for seed in range(12):
        rng = Random(seed)
        endpoints = [
            {
                "targetRef": {
                    "kind": rng.choice(("Pod", "Pod", "Node")),
                    "name": f"p{rng.randrange(3)}",
                },
                "conditions": rng.choice(
                    ({}, {"ready": True}, {"ready": False}, {"terminating": True})
                ),
            }
            for _ in range(rng.choice((0, 2, 4)))
        ]
        yield row({"endpoints": endpoints}, external_workload([{"endpoints": endpoints}]))


def conditions() -> Iterator[str]:
    """The conditions that are not as in a healthy service, and the events of a change from one state to the next."""
    failures = (
        None,
        None,
        *(
            Note(r, "why")
            for r in (reasons.UNSCHEDULABLE, reasons.CRASHING, reasons.NOT_IN_ROTATION)
        ),
    )
    rng = Random(1)

    def load() -> Workload:
        return Workload(
            wanted=rng.choice((0, 1, 2, 2)),
            exists=bool(rng.randrange(6)),
            pods=2,
            ready=rng.choice((0, 1, 2, 2)),
            settled=bool(rng.randrange(3)),
            failure=rng.choice(failures),
            stuck=rng.choice((None, None, None, Note(reasons.CRASHING, "it ended"))),
        )

    before: dict[str, Any] = {}
    for n in range(60):
        found = Findings(
            faults=rng.choice(((), (), (), (Fault("spec.x", "is wrong"),))),
            runs=bool(rng.randrange(5)),
            engines=load(),
            routers=load(),
            scaling=Scaling(2, Note("NotConfigured", "not set")),
            notes=rng.choice(((), (), (Note("A", "a note"), Note("B", "another.")))),
            blocked=rng.choice((None, None, None, Note("RolloutBlocked", "no room"))),
            wakes=not rng.randrange(3),
            inactive=rng.choice(((), (), ("one moved",))),
        )
        listed = verdicts(found)
        plain = [
            {
                "type": v.type.value,
                "status": v.status.value,
                "reason": v.reason,
                "message": v.message,
            }
            for v in listed
        ]
        status = {
            "conditions": plain,
            "scaling": {"desired": rng.choice((1, 2)), "reason": "Demand"},
        }
        events = [
            f"{one.reason}{'!' if one.bad else ''}"
            for one in events_for({"status": before}, status)
        ]
        before = status
        shown = (f"{v.type.value}={v.status.value[0]} {v.reason} {v.message}" for v in listed)
        yield f"{n}: events {text(events)}"
        yield from (
            f"    {line}"
            for line in shown
            if not line.startswith(("ScalingActive", "SpecValid=T", "PluginInactive=F"))
        )


# Objects.


def _places(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Path and value of all leaves; a long text by its digest."""
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _places(one, f"{path}.{name}")
    elif isinstance(value, list | tuple) and value:
        for number, one in enumerate(value):
            yield from _places(one, f"{path}[{number}]")
    else:
        plain = str(value).replace("\n", "\\n")
        digest = sha256(plain.encode()).hexdigest()[:12]
        yield path, plain if len(plain) < 90 else f"{plain[:60]}… {digest}"


QUANTITIES = ("1", "1000m", "1Gi", "1024Mi", 1, "x", "", None, {}, [])
PLACES = (
    "spec.resources.limits.cpu",
    "spec.resources.requests.nvidia.com/gpu",
    "spec.x.y",
    "data.key",
    "spec.sizeLimit",
)


def differences_found() -> Iterator[str]:
    """Whether two values differ for the operator, by their place; how a change is shown."""
    for seed in range(120):
        rng = Random(seed)
        place, wanted, found = rng.choice(PLACES), rng.choice(QUANTITIES), rng.choice(QUANTITIES)
        *parents, last = place.replace("nvidia.com/gpu", "nvidia@com/gpu").split(".")
        manifests = []
        for value in (wanted, found):
            inner: Any = {last.replace("@", "."): value}
            for parent in reversed(parents):
                inner = {parent: inner}
            manifests.append({"kind": "ConfigMap", "metadata": {"name": "n"}, **inner})
        yield row(
            {"place": place, "wanted": repr(wanted), "found": repr(found)},
            sorted(map(str, differences(*manifests))),
        )
    for seed in range(20):
        rng = Random(seed)
        engines = _deployment(rng)
        labels = rng.choice(
            ({}, {ENGINE_KEY_LABEL: "k1"}, {ENGINE_KEY_LABEL: "k1"}, {ENGINE_KEY_LABEL: "k2"})
        )
        engines["spec"] = {"replicas": 2, "template": {"metadata": {"labels": labels}}}
        engines["status"] |= {
            "replicas": 2,
            "updatedReplicas": 2,
            "availableReplicas": rng.choice((1, 2)),
        }
        yield row(
            {"labels": labels, "status": engines["status"]["observedGeneration"]},
            all_use_key(engines, "k1"),
        )
    yield row({"engines": "none"}, all_use_key(None, "k1"))


Objects = Mapping[str, Mapping[str, str]]


def _objects(context: BuildContext) -> Objects:
    """Kind and name → values by path."""
    built = build_all(context, replicas=context.spec.initial_replicas)
    return {f"{one['kind']} {one['metadata']['name']}": dict(_places(one)) for one in built}


def _difference(before: Objects, after: Objects) -> Iterator[str]:
    """The values that differ, and objects that only one of both has by their digest."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            found = old or new or {}
            digest = sha256(repr(sorted(found.items())).encode()).hexdigest()[:12]
            yield f"    {'-' if new is None else '+'} {name}: {len(found)} values, {digest}"
            continue
        for path in sorted({*old, *new}):
            if old.get(path) != new.get(path):
                yield f"    {name}{path}: {old.get(path, '-')} => {new.get(path, '-')}"


SETTINGS: dict[str, dict[str, Any]] = {
    "pull policy": {"pull_policy": "Always"},
    "pull secrets": {"pull_secrets": ("one", "two")},
    "resources": {"router_resources": {"limits": {"cpu": 2}}},
    "images": {
        "router_image": "r:2",
        "sglang_image": "s:2",
        "vllm_image": "v:2",
        "simulator_image": "m:2",
        "download_image": "o:2",
    },
    "scrapers": {"scrapers": {"team": "monitoring"}},
    "namespace": {"operator_namespace": "evenkeel-system"},
    "labels": {"monitoring": Monitoring(labels={"release": "prom"})},
    "runbooks": {"monitoring": Monitoring(runbooks="https://runbooks/")},
    "plain rules": {"monitoring": Monitoring(plain_rules=True)},
    "version": {"version": "2.0.0"},
}


def objects() -> Iterator[str]:
    """What each setting of the operator, each optional API and each kind of service changes in the objects."""
    base = replace(subject_of(_owned(SERVICE)), apis=OPTIONAL_KINDS)
    plain = _objects(base)
    yield f"{sum(map(len, plain.values()))} values"
    yield "no optional API"
    yield from _difference(plain, _objects(replace(base, apis=frozenset())))
    for name, document in {"scaled": SCALED, "external": EXTERNAL, "pooled": POOLED}.items():
        yield name
        other = replace(subject_of(_owned(document)), apis=OPTIONAL_KINDS)
        yield from _difference(plain, _objects(other))
    for name, changes in SETTINGS.items():
        yield name
        given = replace(base, defaults=replace(base.defaults, **changes))
        yield from _difference(plain, _objects(given))


def _owned(document: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {**document["metadata"], "namespace": "team-ml", "uid": "u"}
    return {**document, "metadata": metadata}


TABLES = {
    "operator-behaviour": behaviour,
    "operator-sizes": sizes,
    "operator-scaler": scaler,
    "operator-prometheus": prometheus_answers,
    "operator-rotation": rotation,
    "operator-pods": pods,
    "operator-conditions": conditions,
    "operator-objects": objects,
    "operator-differences": differences_found,
}
