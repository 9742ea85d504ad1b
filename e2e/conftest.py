"""The cluster that the tests run on: that of `make cluster`, or `E2E_KUBECONFIG`. Without one they are skipped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import httpx
import pytest

from e2e.kubectl import Kubectl, find_cluster


@pytest.fixture(scope="session")
def kubectl() -> Kubectl:
    """kubectl, pointed at the cluster."""
    found = find_cluster()
    if found is None:
        pytest.skip("no cluster: run `make cluster`, or set E2E_KUBECONFIG")
    return found


@pytest.fixture(scope="session")
def api(kubectl: Kubectl) -> Iterator[httpx.Client]:
    """The API server as kubectl's user, through `kubectl proxy`: a request costs milliseconds."""
    with subprocess.Popen(
        kubectl.command("proxy", "--port=0"), stdout=subprocess.PIPE, text=True
    ) as proxy:
        try:
            assert proxy.stdout is not None
            address = proxy.stdout.readline().split()[-1]  # Starting to serve on 127.0.0.1:…
            with httpx.Client(base_url=f"http://{address}", timeout=30) as client:
                yield client
        finally:
            proxy.terminate()
