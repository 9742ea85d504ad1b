"""Scaling by spec, by `kubectl scale` and by an autoscaler; neighbours do not touch each other."""

from __future__ import annotations

from typing import Any, Final

import pytest

from e2e.installed import Namespace, Stream, namespace
from e2e.kubectl import Kubectl
from e2e.operators import wait_until

pytestmark = pytest.mark.core
KEY = "sk-scaled"
ALONE: Final[dict[str, Any]] = {"router": {"replicas": 1}, "tenancy": {"anonymous": "Reject"}}


@pytest.fixture(scope="module")
def scaled(team: Namespace) -> Namespace:
    """A service `one` with a tenant."""
    team.tenant("ads", KEY)
    team.serve("one", replicas=1, tenancy={"anonymous": "Reject"})
    team.answers("one", KEY, 200)
    return team


def test_a_service_follows_its_spec_from_one_to_four_to_two(scaled: Namespace) -> None:
    for replicas in (4, 2):
        patch = f'{{"spec": {{"engine": {{"replicas": {replicas}}}}}}}'
        scaled("patch", "fis", "one", "--type=merge", "-p", patch)
        scaled.ready("one", replicas=replicas)
        assert scaled.status("one", KEY) == 200


def test_kubectl_scale_does_the_same_and_keeps_the_replicas_that_stay(scaled: Namespace) -> None:
    scaled("scale", "fis/one", "--replicas=1")
    scaled.ready("one", replicas=1)
    (first,) = scaled.pods("one", "engine")
    scaled("scale", "fis/one", "--replicas=3")
    scaled.ready("one", replicas=3)
    assert first in scaled.pods("one", "engine")


def test_a_real_autoscaler_scales_the_service_through_its_scale_subresource(
    scaled: Namespace,
) -> None:
    """Its bounds alone: they act without any metric, by the same way as a recommendation would."""
    scaled("scale", "fis/one", "--replicas=1")
    scaled.ready("one", replicas=1)
    target = {"apiVersion": "evenkeel.dev/v1alpha1", "kind": "FairInferenceService", "name": "one"}
    metric = {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}},
    }
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "one"},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 3,
            "maxReplicas": 4,
            "metrics": [metric],
        },
    }
    scaled.apply(autoscaler)
    try:
        scaled.ready("one", replicas=3)
        scaled("patch", "hpa", "one", "-p", '{"spec": {"minReplicas": 1, "maxReplicas": 2}}')
        scaled.ready("one", replicas=2)
    finally:
        scaled("delete", "hpa", "one")


def test_replicas_that_go_lose_no_request(scaled: Namespace) -> None:
    """Streams that run on them end whole; what comes meanwhile goes elsewhere (design P4)."""
    scaled("scale", "fis/one", "--replicas=3")
    scaled.ready("one", replicas=3)
    with scaled.client("one", KEY) as client:
        streams = [Stream(client, tokens=1000).started() for _ in range(9)]
        scaled("scale", "fis/one", "--replicas=1")
        wait_until(lambda: len(scaled.pods("one", "engine")) == 1, "two replicas to be leaving")
        assert all(stream.is_alive() for stream in streams)  # else this would prove nothing
        answers = {scaled.status("one", KEY)}
        while any(stream.is_alive() for stream in streams):
            answers.add(scaled.status("one", KEY))
        for stream in streams:
            stream.finish()
    assert answers == {200}


def test_two_services_and_two_tenants_side_by_side_do_not_touch_each_other(
    scaled: Namespace, kubectl: Kubectl
) -> None:
    with namespace(kubectl, "scaling-neighbour") as other:
        other.tenant("ads", "sk-neighbour")  # the same tenant's name, another key
        other.serve("one", **ALONE)
        scaled.serve("two", **ALONE)
        other.answers("one", "sk-neighbour", 200)
        assert other.status("one", KEY) == 401
        assert scaled.status("one", "sk-neighbour") == 401
        scaled.answers("two", KEY, 200)  # tenants serve all services of their namespace
        before = {name: pod["metadata"]["uid"] for name, pod in _all_pods(scaled, other)}
        scaled("delete", "fis", "two")
        wait_until(lambda: not scaled.pods("two", "engine"), "the pods of the deleted one to go")
        after = {name: pod["metadata"]["uid"] for name, pod in _all_pods(scaled, other)}
        assert after.items() <= before.items()
        assert {name for name in before if "/two-" not in name} == set(after)
        assert other.status("one", "sk-neighbour") == 200


def _all_pods(*namespaces: Namespace) -> list[tuple[str, dict[str, dict[str, str]]]]:
    found = []
    for one in namespaces:
        for service in ("one", "two"):
            for component in ("engine", "router"):
                for name, pod in one.pods(service, component).items():
                    found.append((f"{one.name}/{name}", pod))
    return found
