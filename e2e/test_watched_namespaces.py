"""An operator with a list of namespaces, and rights in these alone: one that loses its Role costs the others nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from e2e.kubectl import Kubectl, KubectlError
from e2e.operators import (
    Operator,
    account,
    alone,
    await_made,
    condition,
    grant,
    is_made,
    made,
    operator,
    sample,
    wait_until,
)

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]
KEPT, REMADE = "watched-kept", "watched-remade"


@pytest.fixture(params=[True, False], ids=["with an overview", "in namespaces alone"])
def served(
    request: pytest.FixtureRequest, kubectl: Kubectl, crds: None, tmp_path: Path
) -> Iterator[Operator]:
    """An operator that serves two namespaces; without the overview it does not see that one is deleted."""
    namespaces = (KEPT, REMADE)
    options = [f"--watch-namespace={name}" for name in namespaces]
    options += [] if request.param else ["--namespaces-only"]
    rights = account(kubectl, tmp_path, in_namespaces=True, overview=request.param)
    with alone(kubectl), rights as kubeconfig:
        for name in namespaces:
            kubectl("create", "namespace", name)
            grant(kubectl, name)
        try:
            with operator(kubeconfig, *options, identity="watching") as found:
                yield found
                assert found.stop() == 0
        finally:
            kubectl("delete", "namespace", *namespaces, "--ignore-not-found")


def test_a_namespace_without_its_role_costs_no_other_one(
    kubectl: Kubectl, served: Operator
) -> None:
    for name in (KEPT, REMADE):
        kubectl("-n", name, "apply", "-f", "-", stdin=_service("simulated", host=name))
        await_made(kubectl, name)
    kubectl("delete", "namespace", REMADE)
    kubectl("create", "namespace", REMADE)
    kubectl("-n", REMADE, "apply", "-f", "-", stdin=_service("other"))

    # Open watches last some minutes longer than the right.
    said = re.compile(rf"cannot watch fairinf.* in {REMADE}|{REMADE}/other: 403")
    wait_until(lambda: said.search(served.log.read_text()), "a word about the missing right")
    _still_serves(kubectl, KEPT, served)
    assert not made(kubectl, REMADE, "other")

    grant(kubectl, REMADE)
    wait_until(partial(is_made, kubectl, REMADE, "other"), "the namespace to be served again")
    assert not made(kubectl, REMADE)  # nothing of the service that was deleted with the namespace
    _still_serves(kubectl, KEPT, served)


def _service(name: str, *, host: str = "other") -> str:
    return sample(name, exposure={"ingress": {"host": f"{host}.test"}})


def _still_serves(kubectl: Kubectl, namespace: str, served: Operator) -> None:
    """A change of a service and a foreign change both have their effect."""
    assert served.process.poll() is None

    def engines() -> int:
        spec = kubectl.get("-n", namespace, "deploy", "simulated-engine")["spec"]
        return int(spec["replicas"])

    wanted = engines() + 1
    kubectl("-n", namespace, "scale", "fis/simulated", f"--replicas={wanted}")
    wait_until(lambda: engines() == wanted, "the new number of engines", timeout_s=15)
    kubectl("-n", namespace, "delete", "svc", "simulated-engine")
    wait_until(lambda: _exists(kubectl, namespace), "the Service again", timeout_s=15)
    assert condition(kubectl, namespace, "Degraded")["reason"] != "RightMissing"


def _exists(kubectl: Kubectl, namespace: str) -> bool:
    try:
        return bool(kubectl("-n", namespace, "get", "svc", "simulated-engine"))
    except KubectlError:
        return False
