"""Runtime External: a plain Deployment of engines, made without Evenkeel, gets a fair router and is left alone.

The engines are simulated replicas that serve first come, first served and report nothing.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import httpx
import pytest

from e2e.figures import Question, figures, samples_of
from e2e.installed import MODEL, Namespace, registry, request, under_load
from e2e.kubectl import KubectlError
from e2e.operators import wait_until
from e2e.rig.images import TAG
from tests.support.fake_prometheus import answers

pytestmark = pytest.mark.timeout(600)

NAME: Final = "outside"
LABELS: Final = {"app": "theirs"}
PORT: Final = 9000
IN_BATCH: Final = 2
THREADS: Final = 24
"""Open requests of each tenant: twice what both engines and the windows of two routers take."""
WEIGHTS: Final = {"light": 4, "heavy": 1}
ENGINE: Final = {
    "runtime": "External",
    "external": {"selector": {"matchLabels": LABELS}, "port": PORT},
}


def theirs(name: str, *, replicas: int) -> dict[str, Any]:
    """What a team that does not know Evenkeel would apply."""
    probe = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1}
    container = {
        "name": "server",
        "image": f"{registry()}/simulator:{TAG}",
        "args": [
            f"--model={MODEL}",
            "--host=0.0.0.0",
            f"--port={PORT}",
            "--profile=a100-llama3.1-8b",
            "--replica-policy=FCFS",
            f"--max-running-requests={IN_BATCH}",
        ],
        "readinessProbe": probe,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
    }
    pod = {"terminationGracePeriodSeconds": 180, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"evenkeel.dev/use": "true"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        },
    }


def versions(team: Namespace) -> dict[str, str]:
    """Resource versions of the Deployment, its ReplicaSets and its pods."""
    found = [
        *team.get("replicasets,pods", "-l", "app=theirs")["items"],
        team.get("deploy", "theirs"),
    ]
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
        for item in found
    }


def settled_versions(team: Namespace) -> dict[str, str]:
    """Once their controllers have written the last of a rollout into the status."""
    while True:
        before = versions(team)
        time.sleep(5)
        if versions(team) == before:
            return before


def pods(team: Namespace) -> set[str]:
    return {item["metadata"]["name"] for item in team.get("pods", "-l", "app=theirs")["items"]}


@pytest.fixture(scope="module")
def untouched(team: Namespace) -> dict[str, str]:
    """The engines, ready before Evenkeel knows of them, and the service in front; the versions before it."""
    team.apply(theirs("theirs", replicas=2))
    team("rollout", "status", "deployment/theirs", "--timeout=180s")
    for tenant, weight in WEIGHTS.items():
        team.tenant(tenant, f"sk-{tenant}", weight=weight)
    before = settled_versions(team)
    team.serve(NAME, replicas=None, engine=ENGINE)
    team.ready(NAME)
    return before


@contextmanager
def flood(team: Namespace) -> Iterator[Counter[str]]:
    """Answered requests of each tenant, counted while both flood the service."""
    stop, ended = threading.Event(), Counter[str]()
    faults: list[str] = []

    def ask(tenant: str) -> None:
        with team.client(NAME, f"sk-{tenant}") as client:
            body = request(tokens=32, stream=True)
            while not stop.is_set():
                try:
                    status = client.post("/v1/completions", json=body).status_code
                except httpx.HTTPError as error:
                    faults.append(repr(error))
                    continue
                ended[tenant] += 1
                if status != 200:
                    faults.append(str(status))

    threads = [
        threading.Thread(target=ask, args=(tenant,))
        for tenant, _ in itertools.product(WEIGHTS, range(THREADS))
    ]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=120)
    assert faults == []


def test_traffic_is_shared_by_weight_and_no_object_of_the_engines_changes(
    team: Namespace, untouched: dict[str, str]
) -> None:
    with flood(team) as ended:
        # The first requests came before any queue; later ones make up for them.
        wait_until(lambda: ended.total() >= 200, "the flood", timeout_s=120)
        before = ended.copy()
        wait_until(lambda: ended.total() >= before.total() + 400, "requests", timeout_s=240)
        after = ended.copy()
    given = after - before
    assert given["light"] / given.total() == pytest.approx(0.8, abs=0.06)
    assert versions(team) == untouched
    assert team.condition(NAME, "EnginesReady")["message"] == "2 of 2 engines are ready."
    status = team.get("fis", NAME)["status"]
    assert (status["readyReplicas"], status["selector"]) == (2, "app=theirs")
    assert team("get", "deployment", f"{NAME}-engine", "--ignore-not-found") == ""


def test_a_rollout_by_their_owner_loses_no_request(
    team: Namespace, untouched: dict[str, str]
) -> None:
    before = pods(team)
    with under_load(team, NAME, "sk-light", tokens=800):
        team("rollout", "restart", "deployment/theirs")
        team("rollout", "status", "deployment/theirs", "--timeout=180s")
    wait_until(lambda: before.isdisjoint(pods(team)), "the old engines to end", timeout_s=200)
    wait_until(
        lambda: team.condition(NAME, "EnginesReady")["message"] == "2 of 2 engines are ready.",
        "the new engines in the status",
    )


@pytest.fixture
def inference_pool(team: Namespace) -> Iterator[str]:
    """The name of an InferencePool of the engines, with the definition as far as the operator reads it."""
    group, name = "inference.networking.k8s.io", "theirs"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"inferencepools.{group}",
            # Kubernetes asks for a reference to the approval of groups that end in k8s.io.
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": group,
            "names": {"kind": "InferencePool", "plural": "inferencepools"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }
    crd = f"crd/inferencepools.{group}"
    if team.kubectl("get", crd, "--ignore-not-found"):
        pytest.skip("the cluster has InferencePools of its own")
    team.apply(definition)
    team("wait", "--for=condition=Established", crd, "--timeout=60s")
    spec = {"selector": {"matchLabels": LABELS}, "targetPorts": [{"number": PORT}]}
    pool = {"apiVersion": f"{group}/v1", "kind": "InferencePool", "metadata": {"name": name}}
    wait_until(lambda: _applies(team, {**pool, "spec": spec}), "the new API")
    yield name
    team.kubectl("delete", crd)


def _applies(team: Namespace, item: dict[str, Any]) -> bool:
    try:
        team.apply(item)
    except KubectlError:
        return False
    return True


def test_an_inference_pool_names_the_engines(
    team: Namespace, untouched: dict[str, str], inference_pool: str
) -> None:
    spec = {"runtime": "External", "external": {"inferencePool": inference_pool}}
    team.serve("pooled", replicas=None, engine=spec)
    assert team.get("service", "pooled-engine")["spec"]["selector"] == LABELS
    team.answers("pooled", "sk-light", 200)
    team("delete", "fis", "pooled")


def test_the_scaler_sets_the_number_through_their_deployment(
    team: Namespace, untouched: dict[str, str]
) -> None:
    says = partial(_demand, namespace=team.name)
    with figures(says) as url:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "theirs"}
        autoscaling = {
            "minReplicas": 2,
            "maxReplicas": 4,
            "prometheus": {"url": url},
            "targets": {"utilizationPercent": 100, "servicePerReplica": "10"},
        }
        external = {**ENGINE["external"], "scaleTargetRef": target}  # type: ignore[dict-item]
        team.patch(NAME, engine={"external": external}, autoscaling=autoscaling)
        team("wait", "--for=jsonpath={.spec.replicas}=3", "deployment/theirs", "--timeout=120s")
        team("wait", "--for=jsonpath={.status.readyReplicas}=3", f"fis/{NAME}", "--timeout=120s")
        assert team.condition(NAME, "Degraded")["status"] == "False"


def _demand(question: Question, *, namespace: str) -> Any:
    """Three replicas' worth."""
    found = answers({("light", "chat"): 30.0})
    return samples_of(question, namespace=namespace, service=NAME, answers=found)
