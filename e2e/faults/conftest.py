"""The stage of all scenes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import pytest

from e2e.faults.actions import values
from e2e.faults.stage import Stage, stage
from e2e.installed import installed, namespace
from e2e.kubectl import Kubectl
from e2e.rig.layout import AUDIT_LOG


@pytest.fixture(scope="module")
def set_up(
    kubectl: Kubectl, api: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """The chart, two services, and their clients."""
    if not AUDIT_LOG.exists():
        pytest.skip("needs the cluster of `make cluster`, whose processes it ends")
    for chatty in ("httpx", "httpx2"):  # each request of each client
        logging.getLogger(chatty).setLevel(logging.WARNING)
    folder = tmp_path_factory.mktemp("faults")
    with (
        installed(kubectl, *values()),
        namespace(kubectl, "faults") as team,
        stage(team, api, folder) as made,
    ):
        yield made
