"""Devices by dynamic resource allocation (`engine.gpu.claims`), with the example driver of Kubernetes: each replica gets a claim of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.installed import Namespace, service
from e2e.kubectl import Kubectl
from e2e.operators import wait_until
from e2e.rig import cluster
from e2e.rig.components import DRA_DRIVER
from e2e.rig.errors import NotHereError
from e2e.rig.images import BinaryImage, of_binary
from e2e.standin import stand_in
from images.cache import CACHE
from images.programs import build_program, fetch_modules

pytestmark = pytest.mark.timeout(900)
OBJECTS: Final = Path(__file__).with_name("claims.yaml")
DRIVER: Final = "gpu.example.com"
KEY: Final = "sk-claims"


@pytest.fixture(scope="module")
def driver(kubectl: Kubectl) -> Iterator[None]:
    """The driver on each node, and the devices that it offers."""
    if "E2E_KUBECONFIG" in os.environ:
        pytest.skip("the image of the driver is built for the rig's own cluster only")
    try:
        fetch_modules([DRA_DRIVER], CACHE / "bin")
    except NotHereError as error:
        pytest.skip(str(error))
    image = BinaryImage("evenkeel.dev/e2e/dra-driver:1", DRA_DRIVER.name)
    cluster.load_images([of_binary(image, build_program(DRA_DRIVER))])
    kubectl("apply", "--server-side", "-f", OBJECTS)
    try:
        kubectl("-n", "dra-driver", "rollout", "status", "daemonset/driver", "--timeout=90s")
        wait_until(lambda: len(kubectl.get("resourceslices")["items"]) == 2, "the devices")
        yield
    finally:
        # Without the driver, pods with claims would never end.
        wait_until(lambda: not kubectl.get("resourceclaims", "-A")["items"], "the end of claims")
        kubectl("delete", "-f", OBJECTS)


@pytest.fixture(scope="module")
def served(driver: None, team: Namespace) -> Namespace:
    """A service whose replicas claim two devices each."""
    team.tenant("ads", KEY)
    team.apply(template("two", 2), template("many", 10), claiming(team, "one", "two"))
    team.ready("one", replicas=2)
    return team


def template(name: str, count: int) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def claiming(team: Namespace, name: str, template_name: str) -> dict[str, Any]:
    found = service(name, host=team.host(name), tenancy={"anonymous": "Reject"})
    claim = {"name": "gpu", "resourceClaimTemplateName": template_name, "request": "gpu"}
    found["spec"]["engine"] = stand_in(team, replicas=2, gpu={"count": 2, "claims": [claim]})
    return found


def claims(team: Namespace) -> dict[str, Any]:
    """Pod → the claim that is reserved for it."""
    return {
        one["name"]: item
        for item in team.get("resourceclaims")["items"]
        for one in item["status"].get("reservedFor", ())
    }


def devices(claim: Any) -> set[tuple[str, str]]:
    """(node, device) of an allocated claim."""
    results = claim["status"]["allocation"]["devices"]["results"]
    assert {one["driver"] for one in results} == {DRIVER}
    return {(one["pool"], one["device"]) for one in results}


def test_each_replica_runs_with_devices_of_its_own(served: Namespace) -> None:
    pods, found = served.pods("one", "engine"), claims(served)
    assert found.keys() == pods.keys()
    for name, pod in pods.items():
        assert {node for node, _ in devices(found[name])} == {pod["spec"]["nodeName"]}
        (status,) = pod["status"]["resourceClaimStatuses"]
        assert status == {"name": "gpu", "resourceClaimName": found[name]["metadata"]["name"]}
    assert len(set[tuple[str, str]]().union(*map(devices, found.values()))) == 4
    served.answers("one", KEY, 200)


def test_the_driver_prepared_each_claim_before_its_engine_ran(
    served: Namespace, kubectl: Kubectl
) -> None:
    log = kubectl("-n", "dra-driver", "logs", "-l", "app=driver", "--tail=-1")
    for claim in claims(served).values():
        assert f"Returning newly prepared devices for claim '{claim['metadata']['uid']}'" in log


def test_the_engine_sees_its_devices_and_no_others(served: Namespace) -> None:
    """The runtime puts their variables (CDI) into the container."""
    code = "import os; print(*(value for name, value in sorted(os.environ.items()) if name.removeprefix('GPU_DEVICE_').isdecimal()))"
    for pod, claim in claims(served).items():
        seen = set(served.python(pod, code).split())
        assert seen == {device for _, device in devices(claim)}


def test_a_claim_goes_with_its_replica(served: Namespace) -> None:
    served("scale", "fis/one", "--replicas=1")
    served.ready("one", replicas=1)
    wait_until(lambda: len(served.get("resourceclaims")["items"]) == 1, "the end of a claim")
    assert claims(served).keys() == served.pods("one", "engine").keys()


@pytest.mark.parametrize(
    ("name", "words"), [("many", "cannot allocate all claims"), ("absent", "not found")]
)
def test_a_claim_that_cannot_be_had_is_named(served: Namespace, name: str, words: str) -> None:
    served.apply(claiming(served, name, name))

    def messages() -> str:
        listed = served.get("fis", name)["status"].get("conditions", ())
        return " ".join(one["message"] for one in listed)

    wait_until(lambda: words in messages(), f"{words!r} in the status", timeout_s=180)
    served("delete", "fis", name)
