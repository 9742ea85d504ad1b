"""What the scenes do to the cluster, and how they end it. Each returns the pods whose processes it ended, if any."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Final

import httpx
import pytest

from e2e.faults import machine
from e2e.faults.stage import ENGINE_ARGS, GOLD, WEIGHTS, Stage
from e2e.installed import CHART, SYSTEM, Namespace, helm, registry
from e2e.kubectl import KubectlError
from e2e.operators import wait_until
from e2e.previous import NoHistoryError, find_previous
from e2e.rig import cluster, pki
from e2e.rig.images import TAG, product_archives
from e2e.rig.layout import API_SERVICE_IP, HOST_IP, NODES, STATE

Ended = frozenset[str]


def kill_operator(stage: Stage) -> Ended:
    return frozenset({machine.kill(stage.leader())})


def an_operator_leads(stage: Stage) -> None:
    """The same pod after its restart, or the other one: the Lease is renewed."""
    before = stage.renewed()
    wait_until(lambda: stage.renewed() != before, "a leader")


def kill_operator_in_a_pass(stage: Stage) -> Ended:
    leader = stage.leader()
    most = 400 + int(time.time()) % 100
    stage.kept["most"] = most
    stage.team.patch("one", router={"limits": {"maxConcurrentPerClient": most}})
    return frozenset({machine.kill(leader)})


def the_pass_was_finished(stage: Stage) -> None:
    def config_has_it() -> bool:
        limits = stage.router_config()["limits"]
        return bool(limits["maxConcurrentPerClient"] == stage.kept["most"])

    wait_until(config_has_it, "the new limit")
    an_operator_leads(stage)


def kill_router(stage: Stage) -> Ended:
    return frozenset({machine.kill(next(iter(stage.pods("router").values())))})


def kill_engine(stage: Stage) -> Ended:
    return frozenset({machine.kill(next(iter(stage.pods("engine").values())))})


def kill_kubelet(stage: Stage) -> None:
    stage.kept["kubelet"] = machine.KUBELET.kill()


def start_kubelet(stage: Stage) -> None:
    machine.KUBELET.start(stage.kept["kubelet"])


def kill_containerd(stage: Stage) -> None:
    stage.kept["containerd"] = machine.CONTAINERD.kill()


def start_containerd(stage: Stage) -> None:
    machine.CONTAINERD.start(stage.kept["containerd"])


def cut_node(stage: Stage) -> Ended:
    cut = {**stage.pods("engine", node="node-2"), **stage.pods("router", node="node-2")}
    machine.link(machine.TWO, "down")
    return frozenset(cut)


def join_node(stage: Stage) -> None:
    machine.link(machine.TWO, "up")


def kill_api(stage: Stage) -> None:
    stage.kept["api"] = machine.API.kill()


def start_api(stage: Stage) -> None:
    machine.API.start(stage.kept["api"])
    wait_until(lambda: _api_answers(stage), "the API server")


def _api_answers(stage: Stage) -> bool:
    with suppress(httpx.HTTPError):
        return stage.api.get("/readyz").is_success
    return False


def restart_etcd(stage: Stage) -> None:
    machine.ETCD.start(machine.ETCD.kill())


def rotate_certificate(stage: Stage) -> None:
    """A new certificate of the same authority, and the restart that an API server needs for it."""
    before = (STATE / "pki" / "apiserver.crt").read_text()
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    ips = (API_SERVICE_IP, "127.0.0.1", HOST_IP, *(node.ip for node in NODES))
    pki.issue(pki.Pki(STATE / "pki"), "apiserver", "/CN=kube-apiserver", names=names, ips=ips)
    assert (STATE / "pki" / "apiserver.crt").read_text() != before
    kill_api(stage)
    start_api(stage)


def kill_redis(stage: Stage) -> None:
    stage.redis.kill()


def start_redis(stage: Stage) -> None:
    stage.redis.start()


def fill_disk(stage: Stage) -> None:
    machine.fill_disk()


def free_disk(stage: Stage) -> None:
    machine.free_disk()


def stop_figures(stage: Stage) -> None:
    stage.scaler.refuses = True


def start_figures(stage: Stage) -> None:
    stage.scaler.refuses = False


def slow_figures(stage: Stage) -> None:
    stage.scaler.delay_s = 20.0


def stale_figures(stage: Stage) -> None:
    stage.scaler.age_s = 3600.0


def nan_figures(stage: Stage) -> None:
    stage.scaler.factor = math.nan


def good_figures(stage: Stage) -> None:
    stage.scaler.delay_s, stage.scaler.age_s, stage.scaler.factor = 0.0, 1.0, 1.0


def clock_ahead(stage: Stage) -> None:
    """Of the pods of the second node. Kubelet and containerd do not read it: they are static programs."""
    machine.set_clock(machine.TWO, 3600)
    (pod, *_) = (*stage.pods("router", node="node-2"), *stage.pods("engine", node="node-2"))
    ahead = float(stage.team.python(pod, "import time; print(time.time())")) - time.time()
    assert abs(ahead - 3600) < 60, "the clock of the pods is right"


def clock_right(stage: Stage) -> None:
    machine.set_clock(machine.TWO, 0)


def bad_image(stage: Stage) -> None:
    stage.team.patch("one", engine={"image": f"{registry()}/absent:1"})


def good_image(stage: Stage) -> None:
    stage.team.patch("one", engine={"image": None})


def registry_gone(stage: Stage) -> None:
    """No registry is reachable from the rig. An image that no node has is one that a registry would have."""
    stage.team.patch("one", engine={"image": f"{registry()}/simulator:mirrored"})


def registry_back(stage: Stage) -> None:
    for node in NODES:
        names = [f"{registry()}/simulator:{tag}" for tag in (TAG, "mirrored")]
        machine.containers(node, "images", "tag", "--force", *names)


def bad_flag(stage: Stage) -> None:
    stage.team.patch("one", engine={"args": [*ENGINE_ARGS, "--profile=/nowhere.json"]})


def good_flag(stage: Stage) -> None:
    stage.team.patch("one", engine={"args": list(ENGINE_ARGS)})


def bad_weight(stage: Stage) -> None:
    with pytest.raises(KubectlError, match="spec.weight"):
        stage.team("patch", "itn", GOLD, "--type=merge", "-p", '{"spec": {"weight": 0}}')
    (gold,) = (one for one in stage.router_config()["tenancy"]["tenants"] if one["name"] == GOLD)
    assert gold["weight"] == WEIGHTS[GOLD]


def drain_first(stage: Stage) -> None:
    _drain(stage, machine.ONE.name)


def drain_second(stage: Stage) -> None:
    _drain(stage, machine.TWO.name)


def _drain(stage: Stage, node: str) -> None:
    """All pods that a drain moves. The only router of `filed` cannot leave its disk, so it does not count.

    A scheduler that has not yet seen the cordon may place a new pod on the node: then it is drained again.
    """
    selector = "evenkeel.dev/service!=filed"

    def is_empty() -> bool:
        stage.team.kubectl(
            "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=600s",
            f"--pod-selector={selector}",
        )  # fmt: skip
        return not stage.pods("engine", node=node) and not stage.pods("router", node=node)

    wait_until(is_empty, f"{node} without pods", timeout_s=900)


def uncordon(stage: Stage) -> None:
    for node in NODES:
        stage.team.kubectl("uncordon", node.name)


def evict(stage: Stage) -> None:
    for component in ("router", "engine"):
        name = next(iter(stage.pods(component)))
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": stage.team.name},
        }
        path = f"/api/v1/namespaces/{stage.team.name}/pods/{name}/eviction"
        assert stage.api.post(path, json=body).status_code == 201


LEAVING: Final = "faults-leaving"


def delete_namespace(stage: Stage) -> None:
    kubectl = stage.team.kubectl
    kubectl("create", "namespace", LEAVING)
    leaving = Namespace(kubectl, LEAVING)
    leaving.serve("one", replicas=1)
    kubectl("delete", "namespace", LEAVING, "--wait=false")


def namespace_is_gone(stage: Stage) -> None:
    path = f"/api/v1/namespaces/{LEAVING}"
    wait_until(lambda: stage.api.get(path).status_code == 404, "its end", timeout_s=300)


def rotate_keys(stage: Stage) -> None:
    stage.kept["engines"] = set(stage.pods("engine"))
    stage.team("annotate", "--overwrite", "fis", "one", f"evenkeel.dev/rotate={time.time()}")


def rollout_is_over(stage: Stage) -> None:
    """All engines of before are gone."""
    before = stage.kept["engines"]
    wait_until(lambda: not before & set(stage.pods("engine")), "other engines", timeout_s=420)


def _roll_out(stage: Stage) -> None:
    stage.kept["engines"] = set(stage.pods("engine"))
    marks = {"metadata": {"annotations": {"faults": str(time.time())}}}
    stage.team.patch("one", engine={"template": marks})
    wait_until(lambda: set(stage.pods("engine")) - stage.kept["engines"], "a new engine")


def previous_chart(stage: Stage) -> None:
    """To the chart before this one, in the middle of a rollout of the engines."""
    try:
        previous = find_previous()
    except NoHistoryError as error:
        pytest.skip(f"no previous version: {error}")
    folder = stage.folder / "previous"
    if not folder.exists():
        folder.mkdir()
        tree = previous.unpack(folder)
        cluster.load_images(product_archives(tree, tag=previous.version))
    _roll_out(stage)
    chart = folder / "tree" / "charts" / "evenkeel"
    _upgrade(stage, str(chart), previous.version)


def present_chart(stage: Stage) -> None:
    """From there to this one, likewise."""
    _roll_out(stage)
    _upgrade(stage, str(CHART), TAG)


def values() -> list[str]:
    """Of the installation."""
    return [
        f"--set=images.registry={registry()}",
        "--set=allowPrometheus={*}",
        "--set=metrics.plain.enabled=true",
    ]


def _upgrade(stage: Stage, chart: str, version: str) -> None:
    helm(stage.team.kubectl, "--namespace", SYSTEM, "upgrade", "evenkeel", chart,
         "--reset-values", "--wait", "--timeout=180s", *values())  # fmt: skip
    image = f"{registry()}/router:{version}"

    def all_routers_are_new() -> bool:
        found = [pod["spec"]["containers"][0]["image"] for pod in stage.pods("router").values()]
        return found == [image] * 2

    wait_until(all_routers_are_new, f"routers {version}", timeout_s=300)
