"""From zero: the first request of a service without replicas is held at the routers, and answered by the replica that it
brings, with no Prometheus anywhere."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from e2e.installed import ASLEEP, Namespace, Stream, request, service
from e2e.operators import wait_until

pytestmark = pytest.mark.core
KEY = "sk-early"


@pytest.fixture(scope="module")
def quiet(team: Namespace) -> Namespace:
    """A tenant, and services `one` and `two` without any request yet."""
    team.tenant("ads", KEY)
    for name in ("one", "two"):
        team.apply(service(name, host=team.host(name), replicas=None, autoscaling=ASLEEP))
    for name in ("one", "two"):
        team.ready(name)
        team.reached(name, KEY)
    return team


def reason(team: Namespace, name: str, condition: str) -> str:
    return str(team.condition(name, condition)["reason"])


def test_without_replicas_it_is_ready_and_says_that_it_is_idle(quiet: Namespace) -> None:
    assert quiet.pods("one", "engine") == {}
    assert len(quiet.pods("one", "router")) == 2
    assert {reason(quiet, "one", what) for what in ("Ready", "EnginesReady")} == {"Idle"}
    assert reason(quiet, "one", "Degraded") == "Healthy"


def test_requests_are_held_and_answered_by_the_replica_that_they_bring(quiet: Namespace) -> None:
    answers: list[httpx.Response] = []

    def ask() -> None:
        with quiet.client("one", KEY) as client:
            client.timeout = httpx.Timeout(240)
            answers.append(client.post("/v1/completions", json=request(tokens=2)))

    asking = [threading.Thread(target=ask) for _ in range(4)]  # both routers get some
    for one in asking:
        one.start()
    for one in asking:
        one.join(timeout=240)
    assert [(one.status_code, one.text[:200]) for one in answers if one.status_code != 200] == []
    assert len(answers) == 4
    quiet.ready("one", replicas=1)
    wait_until(lambda: reason(quiet, "one", "Ready") == "Serving", "it to say that it serves")
    assert quiet.status("one", KEY) == 200
    assert quiet.pods("two", "engine") == {}  # the other service stays at zero


def test_so_is_a_stream(quiet: Namespace) -> None:
    with quiet.client("two", KEY) as client:
        client.timeout = httpx.Timeout(240)
        stream = Stream(client, tokens=32)
        stream.start()
        stream.finish()


def test_who_has_scaled_to_zero_by_hand_gets_503_at_once(quiet: Namespace) -> None:
    quiet.serve("three", replicas=1, tenancy={"anonymous": "Reject"})
    quiet.answers("three", KEY, 200)
    quiet("scale", "fis/three", "--replicas=0")
    wait_until(lambda: not quiet.pods("three", "engine"), "its replica to leave")
    quiet.answers("three", KEY, 503, within_s=60)
    with quiet.client("three", KEY) as client:
        answer = client.post("/v1/completions", json=request(tokens=2))
    error: dict[str, Any] = answer.json()["error"]
    assert (error["code"], answer.headers["retry-after"]) == ("scaled_to_zero", "10")
    # Routers know it before the operator's next pass does.
    wait_until(lambda: reason(quiet, "three", "Ready") == "NoReplicas", "the condition to say so")
    quiet("scale", "fis/three", "--replicas=1")
    quiet.ready("three", replicas=1)
    quiet.answers("three", KEY, 200)
