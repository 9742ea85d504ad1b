"""The built-in scaler on a real cluster, with a real Prometheus: what makes a service grow and shrink, and how fast.

Each scene takes minutes, mostly waiting. So scenes run in parallel, each with its own service, and tests check the
results. The events of a service record its changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from e2e.installed import Namespace, service
from e2e.operators import wait_until
from e2e.scaled import SLOW, TENANTS, Scaled, asking, key
from e2e.scraping import PrometheusServer, scraping

CAP, MOST = 2, 5
LOOK_S = 15.0
PER_REPLICA = 5
"""Weighted tokens per second."""
QUICK = {"scaleDown": {"stabilizationWindowSeconds": 20}}
ONE_BY_ONE = [{"type": "Pods", "value": 1, "periodSeconds": 40}]
AT_LEISURE = [{"type": "Pods", "value": 1, "periodSeconds": 90}]
MUCH = "1M"
"""More than any demand: demand alone recommends one replica."""
SERVICES: dict[str, dict[str, Any]] = {
    "capped": {
        "maxReplicas": MOST,
        "maxReplicasPerClient": CAP,
        "targets": {"utilizationPercent": 100, "servicePerReplica": PER_REPLICA},
        "behavior": QUICK,
    },
    "queued": {"maxReplicas": 2, "targets": {"queueTime": "200ms", "servicePerReplica": MUCH}},
    "late": {"maxReplicas": 2, "targets": {"ttftP95": "500ms", "servicePerReplica": MUCH}},
    "learning": {"maxReplicas": 4},
    "stepwise": {
        "maxReplicas": 3,
        "targets": {"utilizationPercent": 100, "servicePerReplica": PER_REPLICA},
        "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 45, "policies": ONE_BY_ONE},
            "scaleDown": {"stabilizationWindowSeconds": 20, "policies": AT_LEISURE},
        },
    },
    "asleep": {"minReplicas": 0, "maxReplicas": 2, "behavior": QUICK},
}
QUEUEING = ("queued", "late", "learning")
"""Replicas so slow that requests wait."""
Fleet = dict[str, Scaled]
Scene = Callable[[Fleet], None]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    with scraping(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="module")
def fleet(team: Namespace, prometheus: PrometheusServer, proxy: str) -> Iterator[Fleet]:
    """All services, with one router each, and tenants with one client each."""
    for tenant in TENANTS:
        team.tenant(tenant, key(tenant))
    team.apply(*(document(team, name, prometheus.url) for name in SERVICES))
    for name in SERVICES:
        team.ready(name)
    prometheus.follow(team, *SERVICES, proxy=proxy)
    with httpx.Client(base_url=proxy, timeout=30) as api:
        yield {name: Scaled(team, name, api, prometheus) for name in SERVICES}


def document(team: Namespace, name: str, url: str) -> dict[str, Any]:
    found = service(
        name,
        host=team.host(name),
        replicas=None,
        router={"replicas": 1},
        tenancy={"anonymous": "Reject"},
        autoscaling=SERVICES[name] | {"prometheus": {"url": url}},
    )
    if name in QUEUEING:
        found["spec"]["engine"]["args"] = list(SLOW)
    return found


def greed(fleet: Fleet) -> None:
    """Demand of one client adds replicas up to its cap; demand of many clients adds them up to the maximum."""
    one = fleet["capped"]
    for tenant in TENANTS:
        one.team.answers("capped", key(tenant), 200)
    one.rest(least=1, usable=PER_REPLICA)
    before = len(one.steps)
    with asking(one, "ads", hands=4, every_s=2):
        one.wait(lambda: one.demand() > (CAP + 1) * PER_REPLICA, "demand beyond the cap")
        one.wait_for(CAP)
        ended_s = time.monotonic() + 2 * LOOK_S  # two more looks
        one.wait(lambda: time.monotonic() > ended_s, "looks")
        assert one.steps[before:] == [f"1 to {CAP}: Demand"]
    with asking(one, *TENANTS, hands=2, every_s=2):
        one.wait_for(MOST)
    assert one.active[0] == "True"


def queue(fleet: Fleet) -> None:
    """Clients that send bursts at the same times: demand is small, and requests wait."""
    _latency(fleet["queued"], "QueueTime")


def first_tokens(fleet: Fleet) -> None:
    _latency(fleet["late"], "TtftP95")


def _latency(one: Scaled, reason: str) -> None:
    for tenant in TENANTS:
        one.team.answers(one.name, key(tenant), 200)
    with asking(one, *TENANTS, every_s=10):
        one.wait_for(2)
    assert one.steps[-1] == f"1 to 2: {reason}"


def learning(fleet: Fleet) -> None:
    """Without `servicePerReplica`: capacity is unknown until requests have waited, and then the service grows."""
    one = fleet["learning"]
    for tenant in TENANTS:
        one.team.answers(one.name, key(tenant), 200)
    with asking(one, "ads"):
        one.wait(lambda: one.active == ("True", "LearningCapacity"), "learning")
    assert one.steps == []
    with asking(one, "ads", "search", "mail", hands=2):
        step = one.wait(lambda: one.steps, "growth")[0]
        assert (step[:5], step.partition(": ")[2]) == ("1 to ", "Demand")
        one.wait(lambda: one.status["readyReplicas"] > 1, "another replica")


def stepwise(fleet: Fleet) -> None:
    """Windows and policies: up one by one after a while, and down likewise."""
    one = fleet["stepwise"]
    for tenant in TENANTS:
        one.team.answers(one.name, key(tenant), 200)
    one.rest(least=1, usable=PER_REPLICA)
    before = len(one.steps)
    with asking(one, *TENANTS, every_s=2):
        one.wait(lambda: one.decided == (1, "Stabilizing"), "the window of scaleUp")
        assert one.demand() > PER_REPLICA
        one.wait(lambda: one.decided == (2, "RateLimited"), "the policy of scaleUp")
        one.wait_for(3)
    one.wait(lambda: one.decided == (2, "RateLimited"), "the policy of scaleDown")
    assert one.demand() < PER_REPLICA
    one.wait_for(1)
    reached = [step.partition(":")[0] for step in one.steps[before:]]
    assert reached == ["1 to 2", "2 to 3", "3 to 2", "2 to 1"]


def sleep(fleet: Fleet) -> None:
    """To zero without demand, by the measurements of Prometheus, and back by the next request."""
    one = fleet["asleep"]
    assert one.decided[0] == 0
    with asking(one, "ads", every_s=2):
        one.wait_for(1)
        one.wait(lambda: one.demand() > 0, "Prometheus to see it")
    assert one.steps == ["0 to 1: Activated"]
    one.wait_for(0)
    assert one.steps[1:] == ["1 to 0: Demand"]
    assert one.active == ("True", "Scaling")
    one.wait(lambda: not one.team.pods(one.name, "engine"), "its replica to leave")
    assert one.team.condition(one.name, "Ready")["reason"] == "Idle"
    assert one.team.status(one.name, key("ads")) == 200
    assert one.steps[2:] == ["0 to 1: Activated"]


SCENES: tuple[Scene, ...] = (greed, queue, first_tokens, learning, stepwise, sleep)


@pytest.fixture(scope="module")
def played(fleet: Fleet) -> Iterator[dict[Scene, Future[None]]]:
    """The scenes, each in a thread."""
    with ThreadPoolExecutor(len(SCENES)) as pool:
        yield {scene: pool.submit(scene, fleet) for scene in SCENES}


Played = dict[Scene, Future[None]]


def test_one_greedy_client_grows_it_to_its_cap_and_many_to_the_most(played: Played) -> None:
    played[greed].result()


def test_it_grows_by_the_time_that_requests_wait(played: Played) -> None:
    played[queue].result()


def test_it_grows_by_the_time_to_the_first_token(played: Played) -> None:
    played[first_tokens].result()


def test_it_grows_by_demand_once_it_has_learnt_what_a_replica_can_do(played: Played) -> None:
    played[learning].result()


def test_windows_and_policies_bound_how_fast_it_grows_and_shrinks(played: Played) -> None:
    played[stepwise].result()


def test_it_goes_to_zero_without_demand_and_back_by_the_next_request(played: Played) -> None:
    played[sleep].result()


def test_the_number_stays_without_prometheus_and_shrinks_without_demand(
    fleet: Fleet, prometheus: PrometheusServer
) -> None:
    one = fleet["capped"]
    with asking(one, *TENANTS, hands=2, every_s=2):
        one.wait_for(MOST)
        prometheus.stop()
        wait_until(lambda: one.active == ("False", "PrometheusUnreachable"), "blindness")
    held = len(one.steps)
    ended_s = time.monotonic() + 4 * LOOK_S  # longer than the window, without demand
    wait_until(lambda: time.monotonic() > ended_s, "looks")
    assert one.steps[held:] == []
    prometheus.start()
    one.wait(lambda: one.active[0] == "True", "sight")
    one.wait_for(1)
    assert one.team.status(one.name, key("ads")) == 200
    assert "replicas" not in one.team.get("fis", one.name)["spec"]["engine"]
