"""The cluster that the tests run on: that of `make cluster`, or `E2E_KUBECONFIG`. Without one they are skipped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from e2e.installed import Namespace, installed
from e2e.installed import namespace as namespace_of
from e2e.kubectl import Kubectl, find_cluster
from e2e.operators import ROOT, Operator, account, alone, operator


@pytest.fixture(scope="session")
def kubectl() -> Kubectl:
    """kubectl, pointed at the cluster."""
    found = find_cluster()
    if found is None:
        pytest.skip("no cluster: run `make cluster`, or set E2E_KUBECONFIG")
    return found


@pytest.fixture(scope="module")
def evenkeel(kubectl: Kubectl) -> Iterator[None]:
    """The chart, installed for the tests of one file."""
    with installed(kubectl):
        yield


@pytest.fixture(scope="module")
def team(evenkeel: None, kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace named after the test's file."""
    name = request.node.name.rpartition("/")[2].removeprefix("test_").removesuffix(".py")
    with namespace_of(kubectl, name.replace("_", "-")) as found:
        yield found


@pytest.fixture(scope="session")
def proxy(kubectl: Kubectl) -> Iterator[str]:
    """The API server's address as kubectl's user, through `kubectl proxy`."""
    with subprocess.Popen(
        kubectl.command("proxy", "--port=0"), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]  # Starting to serve on 127.0.0.1:…
            yield f"http://{address}"
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def api(proxy: str) -> Iterator[httpx.Client]:
    """The API server: a request costs milliseconds."""
    with httpx.Client(base_url=proxy, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def crds(kubectl: Kubectl) -> None:
    for name in ("fairinferenceservices", "inferencetenants"):
        path = ROOT / "crds" / f"{name}.yaml"
        kubectl("apply", "--server-side", "--force-conflicts", "-f", path)
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


@pytest.fixture(scope="module")
def kubeconfig(
    kubectl: Kubectl, crds: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    with alone(kubectl), account(kubectl, tmp_path_factory.mktemp("operators")) as path:
        yield path


@pytest.fixture
def one(kubeconfig: Path) -> Iterator[Operator]:
    """One operator process."""
    with operator(kubeconfig, identity="one") as found:
        yield found
        assert found.stop() == 0


@pytest.fixture
def namespace(kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"op-{request.node.name.replace('_', '-')[5:45].strip('-')}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")
