"""Who may talk to whom: NetworkPolicies by their rules, over real pods and namespaces, and the engines' own key."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from evenkeel_contract.names import (
    ADMIN_PORT,
    ENGINE_PORT,
    KV_EVENTS_PORT,
    KV_REPLAY_PORT,
    PROBE_PORT,
    REPORTS_PORT,
    TRAFFIC_PORT,
)

from e2e.installed import SYSTEM, Namespace
from e2e.kubectl import Kubectl
from e2e.policies import Pod, allows
from e2e.rig.layout import in_url

pytestmark = pytest.mark.core
OPERATOR_PORT = 8081


class World:
    """The policies of the cluster, and pods to try them with."""

    def __init__(self, kubectl: Kubectl, team: Namespace) -> None:
        self.policies = kubectl.get("networkpolicies", "--all-namespaces")["items"]
        labels = {
            item["metadata"]["name"]: item["metadata"]["labels"]
            for item in kubectl.get("namespaces")["items"]
        }

        def pod(where: str, found: Mapping[str, str]) -> Pod:
            return Pod(where, found, labels[where])

        def real(service: str, component: str) -> Pod:
            item = next(iter(team.pods(service, component).values()))
            return pod(team.name, item["metadata"]["labels"])

        (operator, *_) = kubectl.get(
            "-n", SYSTEM, "pods", "-l", "app.kubernetes.io/name=evenkeel-operator"
        )["items"]
        self.pods = {
            "engine": real("one", "engine"),
            "router": real("one", "router"),
            "router of another service": real("two", "router"),
            "engine of another service": real("two", "engine"),
            "operator": pod(SYSTEM, operator["metadata"]["labels"]),
            "stranger in the namespace": pod(team.name, {"app": "stranger"}),
            "stranger elsewhere": pod("default", {"app": "stranger"}),
            # A tenant of the cluster may call its pods as it likes, in its own namespace.
            "namesake of a router elsewhere": pod("default", real("one", "router").labels),
            "namesake of the operator elsewhere": pod("default", operator["metadata"]["labels"]),
            "ingress controller": pod("ingress", {"app": "traefik"}),
        }

    def may(self, source: str, target: str, port: int) -> bool:
        return allows(self.policies, source=self.pods[source], target=self.pods[target], port=port)


@pytest.fixture(scope="module")
def world(team: Namespace, kubectl: Kubectl) -> World:
    for name in ("one", "two"):
        team.serve(name, replicas=1)
    return World(kubectl, team)


ENGINE_PORTS = (ENGINE_PORT, KV_EVENTS_PORT, KV_REPLAY_PORT, REPORTS_PORT)
OTHERS = (
    "router of another service",
    "engine of another service",
    "stranger in the namespace",
    "stranger elsewhere",
    "namesake of a router elsewhere",
    "ingress controller",
)


@pytest.mark.parametrize("port", ENGINE_PORTS)
def test_engines_take_from_the_routers_of_their_service(world: World, port: int) -> None:
    assert world.may("router", "engine", port)


@pytest.mark.parametrize("source", OTHERS)
@pytest.mark.parametrize("port", ENGINE_PORTS)
def test_engines_accept_only_routers_and_scrapers(world: World, source: str, port: int) -> None:
    """Without `metrics.scraperNamespaceLabels`, pods of any namespace may read metrics: on the HTTP port, where the
    key is asked for everything else."""
    assert world.may(source, "engine", port) == (port == ENGINE_PORT)


@pytest.mark.parametrize("source", OTHERS)
def test_any_pod_may_send_requests_and_only_peers_reach_the_admin_port(
    world: World, source: str
) -> None:
    assert world.may(source, "router", TRAFFIC_PORT)
    assert not world.may(source, "router", ADMIN_PORT)


def test_routers_talk_to_each_other_and_the_operator_to_them(world: World) -> None:
    assert world.may("router", "router", ADMIN_PORT)
    assert world.may("operator", "router", ADMIN_PORT)
    assert not world.may("namesake of the operator elsewhere", "router", ADMIN_PORT)
    assert world.may("stranger elsewhere", "router", PROBE_PORT)  # metrics


def test_the_operator_takes_probes_and_nothing_else(world: World) -> None:
    assert world.may("stranger elsewhere", "operator", OPERATOR_PORT)
    assert not world.may("stranger elsewhere", "operator", 8080)


def test_an_unlisted_port_is_closed(world: World) -> None:
    for target in ("engine", "router", "operator"):
        assert not world.may("stranger in the namespace", target, 22)


ASK = """
import urllib.request as u, urllib.error as e
r = u.Request('http://%s:30000%s', headers=%r)
try:
    print(u.urlopen(r, timeout=10).status)
except e.HTTPError as error:
    print(error.code)
"""


def test_an_engine_refuses_requests_without_its_services_key(world: World, team: Namespace) -> None:
    """From a router's pod, where every door is open; with a neighbour's key, too."""
    (router,) = list(team.pods("one", "router"))[:1]
    (engine,) = team.pods("one", "engine").values()
    address = in_url(engine["status"]["podIP"])

    def ask(path: str, **headers: str) -> str:
        return team.python(router, ASK % (address, path, headers))

    assert ask("/v1/models") == "401"
    assert ask("/v1/models", Authorization="Bearer guess") == "401"
    assert ask("/v1/models", Authorization=f"Bearer {_engine_key(team, 'two')}") == "401"
    assert ask("/v1/models", Authorization=f"Bearer {_engine_key(team, 'one')}") == "200"
    assert ask("/ready") == "200"  # kubelet has no key


def _engine_key(team: Namespace, service: str) -> str:
    (engine,) = team.pods(service, "engine")
    return team.python(engine, "import os; print(os.environ['EVENKEEL_ENGINE_KEY'])")
