"""Faults that hid, and healthy changes that looked like faults: what conditions and events say of them."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.installed import SYSTEM, Namespace, namespace, service
from e2e.kubectl import Kubectl, KubectlError
from e2e.operators import wait_until

pytestmark = pytest.mark.timeout(400)
KEY = "sk-faults"
NOWHERE = {"template": {"spec": {"nodeSelector": {"evenkeel.test/none": "x"}}}}


def warnings(team: Namespace, name: str) -> list[str]:
    """Messages of the operator's Warning events about a service."""
    fields = f"type=Warning,involvedObject.kind=FairInferenceService,involvedObject.name={name}"
    items = team.get("events", "--field-selector", fields)["items"]
    return [f"{item['reason']}: {item['message']}" for item in items]


def degraded(team: Namespace, name: str) -> Any:
    listed = team.get("fis", name).get("status", {}).get("conditions", ())
    return next((one for one in listed if one["type"] == "Degraded"), {"status": "Unknown"})


@pytest.mark.core
def test_a_healthy_start_and_a_scale_up_emit_no_warning(team: Namespace) -> None:
    team.tenant("any", KEY)
    team.serve("healthy", replicas=2, router={"replicas": 1})
    team.ready("healthy", replicas=2)
    team("scale", "fis/healthy", "--replicas=3")
    team.ready("healthy", replicas=3)
    assert warnings(team, "healthy") == []
    assert degraded(team, "healthy")["reason"] == "Healthy"
    team("delete", "fis", "healthy")


@pytest.mark.core
def test_a_service_whose_only_router_fits_on_no_node_is_degraded(team: Namespace) -> None:
    team.apply(service("lonely", host=team.host("lonely"), router={"replicas": 1, **NOWHERE}))
    found = wait_until(
        lambda: one if (one := degraded(team, "lonely"))["status"] == "True" else None,
        "the fault to be named",
    )
    assert "fits on no node" in found["message"]
    team.patch("lonely", router={"template": None})
    team.ready("lonely")
    wait_until(lambda: degraded(team, "lonely")["status"] == "False", "the fault to clear")
    team("delete", "fis", "lonely")


@pytest.mark.core
def test_a_second_service_does_not_take_the_host_of_the_first(
    team: Namespace, kubectl: Kubectl
) -> None:
    team.tenant("any", KEY)
    team.serve("first", router={"replicas": 1})
    team.answers("first", KEY, 200)
    with namespace(kubectl, "faults-other") as other:
        other.apply(service("second", host=team.host("first"), router={"replicas": 1}))
        wait_until(lambda: degraded(other, "second").get("reason") == "HostTaken", "HostTaken")
        assert f"namespace {team.name} (service first)" in degraded(other, "second")["message"]
        with pytest.raises(KubectlError, match="NotFound"):
            other("get", "ingress", "second-router")
        team.answers("first", KEY, 200)
        team("delete", "fis", "first")
        wait_until(lambda: degraded(other, "second")["status"] == "False", "the host to be free")
        assert other.get("ingress", "second-router")


@pytest.mark.parametrize("what", ["image", "flag"])
def test_a_corrected_spec_runs_where_broken_engines_hold_every_gpu(
    team: Namespace, what: str
) -> None:
    """Two engines with eight GPUs each take all of the rig's."""
    gpus = {"nvidia.com/gpu": "8"}
    bad: Any = {"args": ["--no-such-flag"]} if what == "flag" else {"image": "evenkeel.test/no:1"}
    resources = {"requests": gpus, "limits": gpus}
    engine = {"template": {"spec": {"resources": resources}}}
    broken = service(what, host=team.host(what), replicas=2)
    good = dict(broken["spec"]["engine"]) | engine
    broken["spec"]["engine"] = good | bad
    team.apply(broken)
    wait_until(
        lambda: degraded(team, what).get("reason") == "RolloutStuck", "the fault to be named"
    )
    team.apply({**broken, "spec": {**broken["spec"], "engine": good}})
    team.ready(what, replicas=2)
    strategy = team.get("deploy", f"{what}-engine")["spec"]["strategy"]["rollingUpdate"]
    assert strategy["maxUnavailable"] == 0
    team("delete", "fis", what)


def test_a_volume_that_is_missing_is_named(team: Namespace) -> None:
    name = "certs-missing"
    volumes = {
        "volumes": [{"name": "certs", "secret": {"secretName": name}}],
        "volumeMounts": [{"name": "certs", "mountPath": "/certs"}],
    }
    wanted = service("volume", host=team.host("volume"))
    wanted["spec"]["engine"]["template"] = {"spec": volumes}
    team.apply(wanted)
    wait_until(
        lambda: f'secret "{name}" not found' in degraded(team, "volume").get("message", ""),
        "the volume to be named",
        timeout_s=180,
    )
    team("create", "secret", "generic", name, "--from-literal=a=b")
    team.ready("volume")
    wait_until(lambda: degraded(team, "volume")["status"] == "False", "the fault to clear")
    team("delete", "fis", "volume")


def test_a_paused_deployment_is_named(team: Namespace) -> None:
    team.serve("paused", replicas=1)
    team("rollout", "pause", "deployment/paused-engine")
    resources = {"requests": {"cpu": "60m", "memory": "128Mi"}}
    team.patch("paused", engine={"template": {"spec": {"resources": resources}}})
    wait_until(lambda: "is paused" in degraded(team, "paused")["message"], "the pause to be named")
    assert team.condition("paused", "Ready")["status"] == "True"
    team("rollout", "resume", "deployment/paused-engine")
    wait_until(lambda: degraded(team, "paused")["status"] == "False", "the rollout to go on")
    team("delete", "fis", "paused")


def test_nothing_is_applied_in_a_namespace_that_is_being_deleted(kubectl: Kubectl) -> None:
    with namespace(kubectl, "faults-terminating") as team:
        team.serve("one", replicas=2)
        kubectl("delete", "namespace", team.name, "--wait=false")
        wait_until(lambda: _is_gone(kubectl, team.name), "its end", timeout_s=300)
        kubectl("create", "namespace", team.name)  # for the end of the context
        pods = ("-l", "app.kubernetes.io/name=evenkeel-operator", "--tail=-1")
        log = kubectl("-n", SYSTEM, "logs", *pods, "--since=5m")
        odd = [line for line in log.splitlines() if "being terminated" in line]
        assert odd == []


def _is_gone(kubectl: Kubectl, name: str) -> bool:
    return not kubectl("get", "namespace", name, "--ignore-not-found").strip()
