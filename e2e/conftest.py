"""The cluster that the tests run on: that of `make cluster`, or `E2E_KUBECONFIG`. Without one they are skipped."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import httpx
import pytest

from e2e.installed import Namespace
from e2e.installed import namespace as namespace_of
from e2e.kubectl import Kubectl, find_cluster
from e2e.operators import ROOT, Operator, account, alone, operator
from e2e.sharing import Turn, share

LONG: Final = ("fields_at_work", "fields", "rotation", "scaling", "from_zero", "faults", "keys")
"""Files whose tests take minutes, from the longest: they come first, so that no worker begins one last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that run alone come last."""

    def place(item: pytest.Item) -> tuple[bool, int]:
        name = item.path.stem.removeprefix("test_")
        long = LONG.index(name) if name in LONG else len(LONG)
        return item.get_closest_marker("alone") is not None, long

    items.sort(key=place)


@cache
def turn() -> Turn | None:
    """The turn of this worker; None without a cluster."""
    found = find_cluster()
    return None if found is None else Turn(found)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Wait for the turn of a test that uses the cluster, outside its time limit."""
    mine = turn() if "kubectl" in getattr(item, "fixturenames", ()) else None
    if mine is not None:
        mine.take(alone=item.get_closest_marker("alone") is not None)
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """After the end of all fixtures."""
    mine = turn()
    if mine is not None:
        mine.leave()


@pytest.fixture(scope="session")
def kubectl() -> Kubectl:
    """kubectl, pointed at the cluster."""
    found = find_cluster()
    if found is None:
        pytest.skip("no cluster: run `make cluster`, or set E2E_KUBECONFIG")
    return found


@pytest.fixture(scope="session")
def evenkeel(kubectl: Kubectl) -> None:
    """The chart that all files share: their tests leave it as it is."""
    share(kubectl)


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
    for name in ("fairinferenceservices", "inferencetenants", "fairinferencegateways"):
        path = ROOT / "crds" / f"{name}.yaml"
        kubectl("apply", "--server-side", "--force-conflicts", "-f", path)
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


@pytest.fixture(scope="session")
def operators_account(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with account(kubectl, tmp_path_factory.mktemp("operators")) as path:
        yield path


@pytest.fixture(scope="module")
def kubeconfig(kubectl: Kubectl, crds: None, operators_account: Path) -> Iterator[Path]:
    """The operators' kubeconfig, where no other operator acts."""
    with alone(kubectl):
        yield operators_account


@pytest.fixture(scope="module")
def one(kubeconfig: Path) -> Iterator[Operator]:
    """One operator process for all tests of a file."""
    with operator(kubeconfig, identity="one") as found:
        yield found
        assert found.stop() == 0


@pytest.fixture
def namespace(kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"op-{request.node.name.replace('_', '-')[5:45].strip('-')}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")
