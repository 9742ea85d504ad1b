"""The built-in scaler on a real cluster, with a real Prometheus: many grow a service, one greedy client does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from e2e.installed import Namespace, request
from e2e.operators import wait_until
from e2e.scraping import PrometheusServer, scraping

TENANTS = ("ads", "search", "mail")
CAP, MOST = 2, 5
LOOK_S = 15.0
HANDS = 8
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    with scraping(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="module")
def scaled(team: Namespace, prometheus: PrometheusServer, proxy: str) -> Namespace:
    """A service `one` of one replica, which three tenants with one client each may use."""
    for name in TENANTS:
        team.tenant(name, key(name))
    team.serve(
        "one",
        replicas=None,
        tenancy={"anonymous": "Reject"},
        autoscaling={
            "maxReplicas": MOST,
            "maxReplicasPerClient": CAP,
            "prometheus": {"url": prometheus.url},
            "targets": {"utilizationPercent": 100, "servicePerReplica": 5},
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 20}},
        },
    )
    prometheus.follow(team, "one", proxy=proxy)
    for name in TENANTS:
        team.answers("one", key(name), 200)
    return team


def key(tenant: str) -> str:
    return f"sk-{tenant}"


def ask(team: Namespace, *tenants: str, count: int = 80) -> None:
    """Short requests of each: together some 24 weighted tokens per second, over the minute that counts."""

    def several(tenant: str) -> list[int]:
        with team.client("one", key(tenant)) as client:
            answers = [
                client.post("/v1/completions", json=request()) for _ in range(count // HANDS)
            ]
            return [answer.status_code for answer in answers]

    with ThreadPoolExecutor(HANDS * len(tenants)) as pool:
        found = pool.map(several, tenants * HANDS)
        assert {status for statuses in found for status in statuses} == {200}


def scaling(team: Namespace) -> Any:
    return team.get("fis", "one")["status"].get("scaling", {})


def scaling_active(team: Namespace) -> tuple[str, str]:
    conditions = team.get("fis", "one")["status"]["conditions"]
    found = next(item for item in conditions if item["type"] == "ScalingActive")
    return found["status"], found["reason"]


def test_one_greedy_client_grows_it_to_its_cap_and_many_to_the_most(scaled: Namespace) -> None:
    wait_until(lambda: scaling_active(scaled) == ("True", "Scaling"), "a first look")
    # What a client's first request costs is not known before its end, and taken for much.
    wait_until(lambda: scaling(scaled)["desired"] == 1, "rest")
    ask(scaled, "ads")
    wait_until(lambda: scaling(scaled)["desired"] == CAP, "growth to the client's cap")
    ask(scaled, "ads")
    until_s = time.monotonic() + 2 * LOOK_S
    while time.monotonic() < until_s:
        assert scaling(scaled)["desired"] <= CAP
        time.sleep(1)
    scaled.ready("one", replicas=CAP)
    ask(scaled, *TENANTS)
    wait_until(lambda: scaling(scaled)["desired"] == MOST, "growth with many clients")
    scaled.ready("one", replicas=MOST)
    assert "replicas" not in scaled.get("fis", "one")["spec"]["engine"]


def test_without_prometheus_it_holds_and_with_it_it_shrinks_when_nobody_asks(
    scaled: Namespace, prometheus: PrometheusServer
) -> None:
    held = scaling(scaled)["desired"]
    assert held > 1
    prometheus.stop()
    wait_until(lambda: scaling_active(scaled)[0] == "False", "blindness")
    assert scaling_active(scaled)[1] == "PrometheusUnreachable"
    ended_s = time.monotonic() + 4 * LOOK_S  # longer than the window, and nobody asks
    while time.monotonic() < ended_s:
        assert scaling(scaled)["desired"] == held
        time.sleep(2)
    prometheus.start()
    wait_until(lambda: scaling_active(scaled)[0] == "True", "sight")
    wait_until(lambda: scaling(scaled)["desired"] == 1, "shrinking", timeout_s=300)
    scaled.ready("one", replicas=1)
    assert scaled.status("one", key("ads")) == 200
