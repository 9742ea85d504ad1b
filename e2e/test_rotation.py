"""Replicas that leave in a scale-down or enter in a rollout, as routers report them, without a failed request."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from typing import Any

import httpx
import pytest

from e2e.installed import Namespace, Stream, request
from e2e.operators import wait_until

pytestmark = pytest.mark.core
KEY = "sk-rotation"
DRAIN = "evenkeel.dev/drain"


@pytest.fixture(scope="module")
def served(team: Namespace) -> Namespace:
    """A service `one` with four replicas and a tenant."""
    team.tenant("ads", KEY)
    team.serve("one", replicas=4, tenancy={"anonymous": "Reject"})
    team.ready("one", replicas=4)
    team.answers("one", KEY, 200)
    return team


def reported(team: Namespace) -> list[dict[str, Any]]:
    """The replicas, as each router reports them."""
    data = team.get("secret", "one-credentials")["data"]["admin-token"]
    headers = {"Authorization": f"Bearer {b64decode(data).decode()}"}
    answers = []
    for router in team.pods("one", "router"):
        with team.forwarded(router, 8082) as url:
            answer = httpx.get(f"{url}/v1/replicas", headers=headers).json()["replicas"]
            answers.append({replica["name"]: replica for replica in answer})
    return answers


def marked(team: Namespace) -> set[str]:
    pods = team.pods("one", "engine")
    return {name for name, pod in pods.items() if DRAIN in pod["metadata"].get("annotations", {})}


def is_true(pod: Any, condition: str) -> bool:
    found = {item["type"]: item["status"] for item in pod["status"].get("conditions", ())}
    return found.get(condition) == "True"


def test_the_busy_one_and_the_warmest_survive_and_no_request_fails(served: Namespace) -> None:
    with served.client("one", KEY) as client:
        for n in range(7):  # caches of different sizes
            body = request(tokens=1) | {"prompt": f"{n} " * 700 * (n + 1)}
            assert client.post("/v1/completions", json=body).status_code == 200
        stream = Stream(client, tokens=3000).started()
        work, blocks = Counter[str](), Counter[str]()
        for answer in reported(served):
            for name, replica in answer.items():
                work[name] += replica["in_flight"]
                blocks[name] += replica["prefix_blocks"]
        (busy,) = (name for name, count in work.items() if count)
        stay = sorted(blocks, key=lambda name: (work[name], blocks[name], name))[-2:]
        assert busy in stay
        assert len(set(blocks.values())) > 1
        served("scale", "fis/one", "--replicas=2")
        statuses = {served.status("one", KEY)}
        while len(served.pods("one", "engine")) > 2 or stream.is_alive():
            assert marked(served) <= set(blocks) - set(stay)  # perhaps gone between two looks
            statuses.add(served.status("one", KEY))
        stream.finish()
    assert statuses == {200}
    assert set(served.pods("one", "engine")) == set(stay)
    assert marked(served) == set()
    served.ready("one", replicas=2)


def test_a_rollout_that_crashes_says_so_at_once_and_ends_with_the_spec(served: Namespace) -> None:
    served("scale", "fis/one", "--replicas=2")
    served.ready("one", replicas=2)
    old = served.pods("one", "engine").keys()
    served.patch("one", engine={"args": ["--profile=/nowhere.json"]})

    def stuck() -> Any:
        found = served.condition("one", "Progressing")
        return found if found["reason"] == "RolloutStuck" else None

    message = wait_until(stuck, "the rollout to be stuck")["message"]
    (new,) = served.pods("one", "engine").keys() - old
    for words in (f"pod {new}", "exit code 2", "'/nowhere.json' is neither"):
        assert words in message
    amiss, engines = (served.condition("one", name) for name in ("Degraded", "EnginesReady"))
    assert (amiss["status"], amiss["reason"]) == ("True", "RolloutStuck")
    assert (engines["status"], new in engines["message"]) == ("True", True)
    # Tools that follow kstatus see a failure, although the old replicas answer.
    kstatus = {name: served.condition("one", name)["status"] for name in ("Ready", "Reconciling", "Stalled")}  # fmt: skip
    assert kstatus == {"Ready": "True", "Reconciling": "False", "Stalled": "True"}

    def tried_again() -> bool:  # and it writes nothing in any state of the container
        (container,) = served.pods("one", "engine")[new]["status"]["containerStatuses"]
        assert served.condition("one", "Progressing")["message"] == message
        return bool(container["restartCount"] >= 2)

    wait_until(tried_again, "the kubelet to try again")
    assert served.status("one", KEY) == 200
    # The pods that a scale-up adds are of the old revision, and newer than the one that crashes.
    served("scale", "fis/one", "--replicas=3")
    wait_until(lambda: served.get("fis", "one")["status"]["readyReplicas"] == 3, "three old ones")
    assert served.condition("one", "Progressing")["reason"] == "RolloutStuck"
    assert served.condition("one", "Degraded")["reason"] == "RolloutStuck"
    stay = served.pods("one", "engine").keys() - {new}
    served.patch("one", engine={"args": ["--profile=a100-llama3.1-8b"]})
    wait_until(lambda: served.condition("one", "Progressing")["reason"] == "Stable", "rest")
    assert served.condition("one", "Degraded")["reason"] == "Healthy"
    assert served.condition("one", "Stalled")["status"] == "False"
    assert served.pods("one", "engine").keys() == stay


def test_a_rollout_waits_until_a_router_has_the_new_replica_in_rotation(served: Namespace) -> None:
    served("scale", "fis/one", "--replicas=1")
    served.ready("one", replicas=1)
    (old,) = served.pods("one", "engine")
    # Routers send no requests to pods that are created with the mark.
    template = {"metadata": {"annotations": {DRAIN: "by-hand"}}}
    served.patch("one", engine={"template": template})

    def waiting() -> list[str]:
        pods = served.pods("one", "engine").items()
        return [name for name, pod in pods if name != old and is_true(pod, "ContainersReady")]

    (new,) = wait_until(waiting, "the new one to be up")
    wait_until(
        lambda: all(
            answer[new]["unschedulable_reason"] == "draining" for answer in reported(served)
        ),
        "both routers to know it",
    )
    assert old in served.pods("one", "engine")
    assert not is_true(served.pods("one", "engine")[new], "Ready")
    assert served.status("one", KEY) == 200
    served("annotate", "pod", new, f"{DRAIN}-")
    wait_until(lambda: set(served.pods("one", "engine")) == {new}, "the old one to leave")
    pod = served.pods("one", "engine")[new]
    assert is_true(pod, "Ready")
    (gate,) = [c for c in pod["status"]["conditions"] if c["type"] == "evenkeel.dev/InRotation"]
    assert gate["reason"] == "InRotation"
    assert served.status("one", KEY) == 200
