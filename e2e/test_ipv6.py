"""A cluster whose nodes, pods and Services have IPv6 alone (`make e2e-ipv6`): every address, and every connection of the parts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import httpx
import pytest
from evenkeel_contract.adminstate import STATE_PATH, RouterState, decode_state
from evenkeel_contract.names import ADMIN_PORT, ENGINE_PORT, PROBE_PORT, TRAFFIC_PORT

from e2e.installed import ROOT, SYSTEM, Namespace, Stream, helm, request, service
from e2e.kubectl import Kubectl
from e2e.operators import wait_until
from e2e.rig.layout import IPV6
from e2e.scraping import PrometheusServer, routes, scraping

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(not IPV6, reason="for the cluster of `make e2e-ipv6`"),
]
KEY = "sk-ads-ipv6"
OWN = """
import re
print(*sorted(set(re.findall(r"-- (\\S+)\\n\\s+/32 host LOCAL", open("/proc/net/fib_trie").read()))))
"""
"""Prints the IPv4 addresses of a pod."""
ASK = """
import json, socket, sys
from http.client import HTTPConnection
host, key, body = sys.argv[1:]
assert {one[0] for one in socket.getaddrinfo(host, 80, proto=socket.IPPROTO_TCP)} == {socket.AF_INET6}
asked = HTTPConnection(host, timeout=30)
asked.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
for line in asked.getresponse(): print(line.decode(), end="")
"""
"""Prints the stream that a Service answers; its name has addresses of IPv6 alone."""


@pytest.fixture(scope="module")
def served(team: Namespace) -> Iterator[Namespace]:
    """Two replicas behind two routers, and a way from this machine to every pod."""
    team.tenant("ads", KEY)
    team.serve("one", replicas=2, router={"replicas": 2})
    team.ready("one", replicas=2)
    team.answers("one", KEY, 200)
    with routes():
        yield team


def url(pod: Any, port: int) -> str:
    return f"http://[{pod['status']['podIP']}]:{port}"


def state(team: Namespace, pod: Any) -> RouterState:
    headers = {"Authorization": f"Bearer {team.admin_token('one')}"}
    answer = httpx.get(url(pod, ADMIN_PORT) + STATE_PATH, headers=headers)
    return decode_state(answer.raise_for_status().content)


def test_no_node_pod_or_service_has_an_ipv4_address(served: Namespace, kubectl: Kubectl) -> None:
    found: list[str] = []
    for node in kubectl.get("nodes")["items"]:
        found += [one["address"] for one in node["status"]["addresses"] if one["type"] != "Hostname"]  # fmt: skip
    for pod in kubectl.get("pods", "-A")["items"]:
        found += [one["ip"] for one in pod["status"]["podIPs"]]
    for one in kubectl.get("services", "-A")["items"]:
        found += [address for address in one["spec"]["clusterIPs"] if address != "None"]
    for one in kubectl.get("endpointslices", "-A")["items"]:
        found += [address for each in one["endpoints"] for address in each["addresses"]]
    assert len(found) > 15
    assert [address for address in found if ip_address(address).version != 6] == []
    for component in ("router", "engine"):
        for name in served.pods("one", component):
            assert served.python(name, OWN) == "127.0.0.1", name


def test_a_stream_comes_through_ingress_and_through_the_service(served: Namespace) -> None:
    with served.client("one", KEY) as client:
        Stream(client, tokens=16).started().finish()
    host = f"one-router.{served.name}.svc.cluster.local"
    (asking, *_) = served.pods("one", "engine")
    body = json.dumps(request(tokens=16, stream=True))
    said = served("exec", asking, "--", "python3", "-c", ASK, host, KEY, body)
    events = [line for line in said.splitlines() if line.startswith("data: ")]
    assert len(events) > 8
    assert events[-1] == "data: [DONE]"


def test_each_router_receives_reports_of_replicas_and_its_peer(
    served: Namespace,
) -> None:
    """Requests go to one router; the other one learns what was served, and to whom."""
    first, second = served.pods("one", "router").values()
    before = _service(state(served, second))
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url(first, TRAFFIC_PORT), headers=headers, timeout=60) as client:
        for _ in range(8):
            assert client.post("/v1/completions", json=request(tokens=64)).status_code == 200
    wait_until(lambda: _service(state(served, second)) > before, "what the first router served")
    for own, other in ((first, second), (second, first)):
        seen = state(served, own)
        assert {one.incarnation != "" for one in seen.replicas} == {True}
        assert {one.report_age_s is not None for one in seen.replicas} == {True}
        (peer,) = seen.peers
        assert other["status"]["podIP"] in peer.url
        assert (peer.error, peer.router) == ("", state(served, other).ledger.router)


def _service(found: RouterState) -> float:
    return sum(tenant.service for tenant in found.tenants if tenant.name == "ads")


def test_a_revoked_key_is_refused_by_each_router(served: Namespace) -> None:
    served.tenant("short", "sk-short-ipv6")
    served.answers("one", "sk-short-ipv6", 200)
    served("delete", "itn", "short")
    served.answers("one", "sk-short-ipv6", 401)


@pytest.fixture(scope="module")
def prometheus(
    served: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    with scraping(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


def test_a_prometheus_scrapes_every_part_and_the_scaler_reads_it(
    served: Namespace, kubectl: Kubectl, prometheus: PrometheusServer
) -> None:
    spec = service("scaled", host=served.host("scaled"), replicas=None)
    spec["spec"]["autoscaling"] = {"maxReplicas": 2, "prometheus": {"url": prometheus.url}}
    served.apply(spec)
    served.ready("scaled")
    operators = ("-n", SYSTEM, "pods", "-l", "app.kubernetes.io/name=evenkeel-operator")
    parts = [
        *((pod, PROBE_PORT, name) for name in ("one", "scaled") for pod in served.pods(name, "router").values()),
        *((pod, ENGINE_PORT, name) for name in ("one", "scaled") for pod in served.pods(name, "engine").values()),
        *((pod, 8081, "") for pod in kubectl.get(*operators)["items"]),
    ]  # fmt: skip
    targets = [
        {
            "targets": [url(pod, port).removeprefix("http://")],
            "labels": {
                "namespace": pod["metadata"]["namespace"],
                "pod": pod["metadata"]["name"],
                "evenkeel_dev_service": name,
            },
        }
        for pod, port, name in parts
    ]
    (prometheus.folder / "routers.json").write_text(json.dumps(targets))
    wait_until(lambda: prometheus.ask("sum(up)") == len(parts), "every target")
    wait_until(
        lambda: served.condition("scaled", "ScalingActive")["status"] == "True",
        "the scaler",
        timeout_s=180,
    )
    served("delete", "fis", "scaled")


def test_the_page_about_ipv6_shows_addresses_of_ipv6_alone(
    served: Namespace, kubectl: Kubectl
) -> None:
    text = (ROOT / "docs/how-to/ipv6.md").read_text()
    blocks = re.findall(r"<!-- test: e2e/test_ipv6.py -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 1
    for line in blocks[0].strip().splitlines():
        words = line.replace("team-ml", served.name).replace("'", "").split()
        assert words[0] == "kubectl"
        families = kubectl(*words[1:]).split()
        assert families
        assert set(families) <= {"IPv6", "::"}, line


def test_the_charts_own_tests_pass(served: Namespace, kubectl: Kubectl) -> None:
    assert "Phase:          Succeeded" in helm(kubectl, "--namespace", SYSTEM, "test", "evenkeel")
