"""Two services of one name in two namespaces, joined as on the page docs/how-to/join-clusters.md: one share of each tenant over both."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from evenkeel_contract.adminstate import STATE_PATH, decode_state
from evenkeel_contract.names import ADMIN_PORT, PROBE_PORT

from e2e.installed import ROOT, Namespace, namespace, request
from e2e.kubectl import Kubectl
from e2e.operators import wait_until

ADS, LAW = "sk-cells-ads-1f", "sk-cells-law-2e"
ENGINE = {"runtime": "Simulator", "args": ["--max-running-requests=2"]}
CERTIFICATE = (
    "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=cells "
    "-keyout ca.key -out ca.crt"
)


class Cells:
    """The cells east and west, and what their routers say."""

    def __init__(self, east: Namespace, west: Namespace) -> None:
        self.east, self.west = east, west

    def counted(self) -> list[float]:
        """`evenkeel_router_cell_counted` of every router."""
        found: list[float] = []
        for cell in (self.east, self.west):
            for pod in cell.pods("one", "router"):
                with cell.forwarded(pod, PROBE_PORT) as address:
                    text = httpx.get(f"{address}/metrics").raise_for_status().text
                values = re.findall(
                    r"^evenkeel_router_cell_counted\{.*\} (\S+)$", text, re.MULTILINE
                )
                found += map(float, values)
        return found

    def weights(self) -> dict[str, float]:
        """Tenant → its weight in the west."""
        pod = next(iter(self.west.pods("one", "router")))
        headers = {"Authorization": f"Bearer {self.west.admin_token('one')}"}
        with self.west.forwarded(pod, ADMIN_PORT) as address:
            answer = httpx.get(address + STATE_PATH, headers=headers)
        state = decode_state(answer.raise_for_status().content)
        return {tenant.name: tenant.weight for tenant in state.tenants}


def federation(cell: str, other: str, where: Namespace) -> dict[str, Any]:
    return {
        "cell": cell,
        "tokenSecretRef": {"name": "cells", "key": "token"},
        "caSecretRef": {"name": "cells", "key": "ca"},
        "cells": [{"name": other, "url": f"http://one-router.{where.name}"}],
        "interval": "1s",
    }


def documented_commands(cell: Namespace, folder: Path) -> None:
    """Both cells get the Secret of the page; the token is made once."""
    text = (ROOT / "docs/how-to/join-clusters.md").read_text()
    (block,) = re.findall(r"<!-- test: e2e/test_cells.py -->\n *```sh\n(.*?)```", text, re.DOTALL)
    if (folder / "cells-token").exists():
        block = re.sub(r"^ *openssl.*$", "", block, flags=re.MULTILINE)
    else:
        block = f"{CERTIFICATE}\n{block}"
    kubectl = " ".join(cell.kubectl.command("-n", cell.name))
    script = f'set -e\nkubectl() {{ {kubectl} "$@"; }}\n{block}'
    subprocess.run(["bash", "-c", script], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def cells(
    team: Namespace, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cells]:
    folder = tmp_path_factory.mktemp("cells")
    with namespace(kubectl, "cells-west") as west:
        for name, key in (("ads", ADS), ("law", LAW)):
            team.tenant(name, key)
            team("annotate", "itn", name, f"evenkeel.dev/share-tenant={west.name}")
        for cell in (team, west):
            documented_commands(cell, folder)
        team.serve("one", engine=dict(ENGINE), federation=federation("east", "west", west))
        theirs = {"anonymous": "Reject", "namespace": team.name}
        joined = federation("west", "east", team)
        west.serve("one", engine=dict(ENGINE), tenancy=theirs, federation=joined)
        for cell in (team, west):
            cell.answers("one", ADS, 200)
        yield Cells(team, west)


@contextmanager
def load(cell: Namespace, key: str, *, threads: int = 8) -> Iterator[None]:
    """Requests, one after another in each thread; all are answered."""
    stop, outcomes = threading.Event(), set[str]()

    def ask() -> None:
        with cell.client("one", key) as client:
            while not stop.is_set():
                answer = client.post("/v1/completions", json=request(tokens=50))
                outcomes.add(str(answer.status_code))

    asking = [threading.Thread(target=ask) for _ in range(threads)]
    for one in asking:
        one.start()
    try:
        yield
    finally:
        stop.set()
        for one in asking:
            one.join(timeout=60)
    assert outcomes == {"200"}


def test_what_a_tenant_gets_in_the_east_lowers_its_weight_in_the_west(cells: Cells) -> None:
    wait_until(lambda: cells.counted() == [1] * 4, "the figures of both cells", timeout_s=30)
    assert cells.weights() == {"ads": 1, "law": 1}
    with ExitStack() as stack:
        for cell, key in ((cells.east, ADS), (cells.west, ADS), (cells.west, LAW)):
            stack.enter_context(load(cell, key))

        def law_is_ahead() -> bool:
            weights = cells.weights()
            return weights["law"] > 3 * weights["ads"]

        wait_until(law_is_ahead, "the weights of the west", timeout_s=60)


def test_cells_with_different_tokens_are_not_joined_and_serve(cells: Cells) -> None:
    patch = json.dumps({"stringData": {"token": "another token of the west"}})
    cells.west("patch", "secret", "cells", "-p", patch)
    wait_until(lambda: cells.counted() == [0] * 4, "cells that do not count", timeout_s=60)
    assert cells.weights() == {"ads": 1, "law": 1}
    for cell in (cells.east, cells.west):
        cell.answers("one", LAW, 200)
    short = json.dumps({"stringData": {"token": "short"}})
    cells.west("patch", "secret", "cells", "-p", short)
    wait_until(
        lambda: cells.west.condition("one", "Degraded")["reason"] == "SecretMissing",
        "the Secret to be named",
    )
    assert "spec.federation.tokenSecretRef" in cells.west.condition("one", "Degraded")["message"]
