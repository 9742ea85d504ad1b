"""Replicas that leave, for whatever reason, lose no request: rollouts, exchanged keys, drained nodes."""

from __future__ import annotations

import json

import pytest

from e2e.installed import Namespace, under_load
from e2e.kubectl import Kubectl
from e2e.operators import wait_until

KEY = "sk-leaving"


@pytest.fixture(scope="module")
def served(team: Namespace) -> Namespace:
    """A service `one` with a tenant."""
    team.tenant("ads", KEY)
    team.serve("one", replicas=1, tenancy={"anonymous": "Reject"})
    team.answers("one", KEY, 200)
    return team


def engines(team: Namespace) -> set[str]:
    return set(team.pods("one", "engine"))


def exchanged(team: Namespace, old: set[str]) -> None:
    """Wait until none of the old pods is left, and as many others are ready as there shall be."""
    wait_until(lambda: engines(team).isdisjoint(old) and engines(team), "other pods")
    team.ready("one", replicas=1)


def test_a_rollout_loses_no_request(served: Namespace) -> None:
    old = engines(served)
    patch = {"spec": {"engine": {"args": ["--profile=a100-llama3.1-8b", "--speed=1.5"]}}}
    with under_load(served, "one", KEY):
        served("patch", "fis", "one", "--type=merge", "-p", json.dumps(patch))
        exchanged(served, old)


def test_new_keys_lose_no_request(served: Namespace) -> None:
    def keys() -> set[str]:
        data = served.get("secret", "one-credentials")["data"]
        return {name for name in data if name.startswith("engine-key-")}

    old, old_keys = engines(served), keys()
    with under_load(served, "one", KEY):
        served("annotate", "fis", "one", "evenkeel.dev/rotate=1")
        exchanged(served, old)
        wait_until(lambda: keys().isdisjoint(old_keys), "the end of the old key")
    assert len(keys()) == 1


def test_draining_the_node_of_the_only_replica_loses_no_request(
    served: Namespace, kubectl: Kubectl
) -> None:
    old = served.pods("one", "engine")
    (node,) = {pod["spec"]["nodeName"] for pod in old.values()}
    pods = "--pod-selector=evenkeel.dev/service=one,evenkeel.dev/component=engine"
    try:
        with under_load(served, "one", KEY):
            kubectl("drain", node, pods, "--delete-emptydir-data", "--timeout=240s")
            exchanged(served, set(old))
    finally:
        kubectl("uncordon", node)
    assert served.get("deploy", "one-engine")["spec"]["replicas"] == 1
