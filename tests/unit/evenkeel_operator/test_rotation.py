"""Engines enter and leave over several passes, on a cluster in memory; any pass may be the last one of its operator."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from evenkeel_contract.adminstate import ReplicasState, encode_state
from evenkeel_kube.client import ClusterError
from evenkeel_operator.cluster.routers import HttpRouters, reached
from evenkeel_operator.cluster.store import SERVICE
from evenkeel_operator.core.objects import Object, seal
from evenkeel_operator.core.rotation import without_gate
from evenkeel_operator.core.workload import COST_ANNOTATION, MARK_PREFIX, engines_of

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_routers import FakeRouters, answer, replica
from tests.support.operator_lives import (
    KEY,
    Operator,
    become_ready,
    cluster_with_the_sample,
    condition,
)

DEPLOYMENT = ("Deployment", "team-ml", "simulated-engine")
GATE = "evenkeel.dev/InRotation"


def put_engine(cluster: FakeCluster, name: str, **conditions: str) -> dict[str, Any]:
    """A pod as its ReplicaSet and its kubelet would have made it."""
    template = cluster.objects[DEPLOYMENT]["spec"]["template"]
    labels = {**template["metadata"]["labels"], "pod-template-hash": "t"}
    found = conditions or {"Ready": "True", "ContainersReady": "True", GATE: "True"}
    listed = [
        {"type": t, "status": s, "lastTransitionTime": "2026-01-31T12:00:00Z"}
        for t, s in found.items()
    ]
    return cluster.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team-ml", "labels": labels},
            "spec": {**template["spec"], "nodeName": "n1"},
            "status": {"phase": "Running", "conditions": listed},
        }
    )


def pods(cluster: FakeCluster) -> dict[str, dict[str, Any]]:
    return {name: pod for (kind, _, name), pod in cluster.objects.items() if kind == "Pod"}


def marks(cluster: FakeCluster) -> str:
    return "".join(
        sorted(engine.name for engine in engines_of(pods(cluster).values()) if engine.mark)
    )


def asked_for(cluster: FakeCluster) -> int:
    return int(cluster.objects[DEPLOYMENT]["spec"]["replicas"])


def shrink(cluster: FakeCluster) -> None:
    """What the ReplicaSet controller does of its own."""
    engines = list(pods(cluster).values())

    def rank(pod: Object) -> int:
        return int(pod["metadata"].get("annotations", {}).get(COST_ANNOTATION, "0"))

    for pod in sorted(engines, key=rank)[: max(0, len(engines) - asked_for(cluster))]:
        del cluster.objects["Pod", "team-ml", pod["metadata"]["name"]]
    become_ready(cluster)


class Routers(FakeRouters):
    """Two routers that follow the pods' marks, and say what each replica does."""

    def __init__(self, cluster: FakeCluster, **in_flight: int) -> None:
        super().__init__()
        self._cluster = cluster
        self._in_flight = in_flight
        self.follow()

    def follow(self) -> None:
        """They have heard of every mark."""
        marked = marks(self._cluster)
        one = answer(
            *(
                replica(
                    name,
                    in_flight=self._in_flight.get(name, 0),
                    unschedulable_reason="draining" if name in marked else "",
                )
                for name in pods(self._cluster)
            )
        )
        self.answers = [one, one]


async def scaled_to_four() -> FakeCluster:
    """The sample with four engines that serve; nothing is left to do."""
    cluster = cluster_with_the_sample()
    cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["engine"]["replicas"] = 4
    await Operator(cluster).make_pass(KEY)
    for name in "abcd":
        put_engine(cluster, name)
    become_ready(cluster)
    await Operator(cluster).make_pass(KEY)
    cluster.writes.clear()
    return cluster


async def recommendation(operator: Operator, replicas: int) -> None:
    spec = {"runtime": "Simulator", "replicas": replicas}
    spec["args"] = ["--profile=a100-llama3.1-8b"]
    await operator.edit(SERVICE, "simulated", engine=spec)


async def see_all(operator: Operator, cluster: FakeCluster) -> float | None:
    """What the watches tell, and the pass that follows."""
    for pod in pods(cluster).values():
        operator.store.see(None, "Pod", pod)
    operator.store.see("MODIFIED", "Deployment", cluster.objects[DEPLOYMENT])
    return await operator.make_pass(KEY)


async def test_the_idlest_replicas_are_marked_before_the_deployment_shrinks() -> None:
    cluster = await scaled_to_four()
    routers = Routers(cluster, a=3, b=2, c=1)
    operator = Operator(cluster, routers=routers)
    await recommendation(operator, 2)
    assert (marks(cluster), asked_for(cluster)) == ("cd", 4)
    note = cluster.objects["Pod", "team-ml", "c"]["metadata"]["annotations"]["evenkeel.dev/drain"]
    assert note.startswith(MARK_PREFIX)
    due_s = await operator.make_pass(KEY)  # routers have not heard of it yet
    assert due_s is not None
    assert due_s < 1
    assert asked_for(cluster) == 4
    routers.follow()
    await operator.make_pass(KEY)
    assert asked_for(cluster) == 2
    shrink(cluster)
    assert set(pods(cluster)) == {"a", "b"}
    await see_all(operator, cluster)
    assert condition(cluster, "Progressing")["status"] == "False"
    asked = routers.asked
    cluster.writes.clear()
    await operator.make_pass(KEY)
    assert (cluster.writes, routers.asked) == ([], asked)
    assert len(routers.tokens) == 1
    assert "" not in routers.tokens


async def test_a_scale_up_in_the_meantime_takes_the_marks_back() -> None:
    cluster = await scaled_to_four()
    operator = Operator(cluster, routers=Routers(cluster))
    await recommendation(operator, 2)
    assert len(marks(cluster)) == 2
    await recommendation(operator, 3)
    assert (len(marks(cluster)), asked_for(cluster)) == (1, 4)
    await recommendation(operator, 4)
    assert (marks(cluster), asked_for(cluster)) == ("", 4)
    assert not any(pod["metadata"].get("annotations") for pod in pods(cluster).values())
    cluster.writes.clear()
    await see_all(operator, cluster)
    assert cluster.writes == []


async def test_the_next_operator_removes_obsolete_marks() -> None:
    cluster = await scaled_to_four()
    await recommendation(Operator(cluster, routers=Routers(cluster)), 2)
    cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["engine"]["replicas"] = 4
    await see_all(Operator(cluster, routers=Routers(cluster)), cluster)
    assert (marks(cluster), asked_for(cluster)) == ("", 4)


async def test_a_scale_down_cut_off_at_any_write_ends_with_the_same_two() -> None:
    writes, cut = 0, 0
    while True:
        cluster = await scaled_to_four()
        routers = Routers(cluster, a=3, b=2, c=1)
        lives = 0
        if cut:
            cluster.fails_after = cut
        operator = Operator(cluster, routers=routers)
        cluster.objects[SERVICE, "team-ml", "simulated"]["spec"]["engine"]["replicas"] = 2
        for _ in range(8):
            try:
                await see_all(operator, cluster)
            except ClusterError:
                lives += 1
                cluster.fails_after = None
                operator = Operator(cluster, routers=routers)
                continue
            routers.follow()
            shrink(cluster)
        assert (set(pods(cluster)), marks(cluster), asked_for(cluster)) == ({"a", "b"}, "", 2)
        if not cut:
            writes = len(cluster.writes)
            assert writes >= 4  # the accepted spec, two marks, the Deployment
        else:
            assert lives == 1
        if cut == writes:
            return
        cut += 1


async def test_a_foreign_number_is_reverted_at_once() -> None:
    cluster = await scaled_to_four()
    routers = Routers(cluster)
    operator = Operator(cluster, routers=routers)
    await operator.make_pass(KEY)
    put_engine(cluster, "e", ContainersReady="False")
    await operator.edit("Deployment", "simulated-engine", replicas=9)
    assert (asked_for(cluster), marks(cluster)) == (4, "")
    assert [event["reason"] for event in cluster.events][1:] == ["Reverted"]


async def test_a_new_template_rolls_out_at_once_though_there_shall_be_fewer_too() -> None:
    cluster = await scaled_to_four()
    operator = Operator(cluster, routers=Routers(cluster))
    spec = {"runtime": "Simulator", "replicas": 2, "args": ["--profile=a100-llama3.1-8b", "--speed=2"]}  # fmt: skip
    await operator.edit(SERVICE, "simulated", engine=spec)
    assert (asked_for(cluster), marks(cluster)) == (2, "")
    assert "--speed=2" in str(cluster.objects[DEPLOYMENT])


async def test_a_cluster_that_refuses_marks_still_shrinks_and_reports_it() -> None:
    cluster = await scaled_to_four()
    operator = Operator(cluster, routers=Routers(cluster))
    cluster.refuses = lambda item: "hands off pods" if item["kind"] == "Pod" else None
    await recommendation(operator, 2)
    assert asked_for(cluster) == 2
    verdict = condition(cluster, "Degraded")
    assert verdict["reason"] == "Refused"
    assert "The API server refuses Pod a: hands off pods." in verdict["message"]


# Who enters.


def is_open(cluster: FakeCluster, name: str) -> bool:
    conditions = cluster.objects["Pod", "team-ml", name]["status"]["conditions"]
    return any(item["type"] == GATE and item["status"] == "True" for item in conditions)


async def test_a_new_replica_waits_for_a_router_and_its_gate_is_opened_once() -> None:
    cluster = cluster_with_the_sample()
    routers = FakeRouters()
    operator = Operator(cluster, routers=routers)
    await operator.make_pass(KEY)
    new = put_engine(cluster, "a", ContainersReady="False")
    assert operator.store.see("ADDED", "Pod", new) == frozenset()
    up = put_engine(cluster, "a", ContainersReady="True")
    routers.answers = [answer(replica("a", unschedulable_reason="unknown"))]
    assert operator.store.see("MODIFIED", "Pod", up) == {KEY}
    due_s = await operator.make_pass(KEY)
    assert not is_open(cluster, "a")
    assert due_s == 1.0
    verdict = condition(cluster, "EnginesReady")
    assert verdict["reason"] == "NotInRotation"
    routers.answers = [None, answer(replica("a"))]
    await operator.make_pass(KEY)
    assert is_open(cluster, "a")
    assert len(cluster.objects["Pod", "team-ml", "a"]["status"]["conditions"]) == 2
    for item in become_ready(cluster):
        await operator.sees(item)
    cluster.writes.clear()
    asked = routers.asked
    await operator.make_pass(KEY)
    assert (cluster.writes, routers.asked) == ([], asked)


async def test_engines_of_an_operator_without_the_gate_are_not_restarted_for_it() -> None:
    cluster = await scaled_to_four()
    live = cluster.objects[DEPLOYMENT]
    bare = without_gate(dict(live))
    annotations = {n: v for n, v in live["metadata"]["annotations"].items() if "digest" not in n}
    bare["metadata"] = {"name": live["metadata"]["name"], "namespace": "team-ml",
                        "labels": live["metadata"]["labels"],
                        "ownerReferences": live["metadata"]["ownerReferences"]}  # fmt: skip
    assert annotations == {}
    manifest = {name: bare[name] for name in ("apiVersion", "kind", "metadata", "spec")}
    digest = seal(manifest)["metadata"]["annotations"]
    before = {**bare, "metadata": {**live["metadata"], "annotations": digest}}
    cluster.put(before)
    operator = Operator(cluster, routers=Routers(cluster))
    cluster.writes.clear()
    await operator.make_pass(KEY)
    assert cluster.writes == []
    await recommendation(operator, 5)
    assert asked_for(cluster) == 5
    assert "readinessGates" not in cluster.objects[DEPLOYMENT]["spec"]["template"]["spec"]
    spec = {"runtime": "Simulator", "replicas": 5, "args": ["--profile=a100-llama3.1-8b", "--speed=2"]}  # fmt: skip
    await operator.edit(SERVICE, "simulated", engine=spec)
    gates = cluster.objects[DEPLOYMENT]["spec"]["template"]["spec"]["readinessGates"]
    assert gates == [{"conditionType": GATE}]


# Routers over real sockets.


def router_pod(**changes: Any) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "127.0.0.1"}
    return {"metadata": {"name": "r"}, "status": status} | changes


@pytest.mark.parametrize(
    ("body", "status", "want"),
    [
        (encode_state(answer(replica("a"))), 200, answer(replica("a"))),
        (b"<html>", 200, None),
        (b'{"version": 7}', 200, None),
        (b"not you", 401, None),
    ],
    ids=["replicas", "a page", "another version", "a refusal"],
)
async def test_a_router_is_asked_with_the_admin_token(
    body: bytes, status: int, want: ReplicasState | None
) -> None:
    tokens = []

    async def replicas(request: web.Request) -> web.Response:
        tokens.append(request.headers["Authorization"])
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_get("/v1/replicas", replicas)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with reached(port=runner.addresses[0][1]) as routers:
            leaving = router_pod(metadata={"name": "l", "deletionTimestamp": "x"})
            starting = router_pod(status={"podIP": "127.0.0.1"})
            found = await routers.ask([router_pod(), leaving, starting], token="t0ken")
    finally:
        await runner.cleanup()
    assert list(found) == [want]
    assert tokens == ["Bearer t0ken"]


async def test_a_router_that_is_not_there_does_not_answer(unused_tcp_port: int) -> None:
    async with reached(port=unused_tcp_port) as routers:
        assert isinstance(routers, HttpRouters)
        assert list(await routers.ask([router_pod()], token="")) == [None]
