"""docs/how-to/rename-a-tenant.md: the keys stay, and account and limits begin anew."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from evenkeel_contract.adminstate import RouterState

from tests.support.up_process import Up

pytestmark = pytest.mark.usefixtures("source_path")


def served(state: RouterState) -> dict[str, float]:
    """Identity of each client that received something, and how much."""
    return {
        client.identity: client.service
        for tenant in state.tenants
        for client in tenant.clients
        if client.service
    }


def settled(up: Up) -> dict[str, float]:
    """What clients received, once two reports in a row say the same."""
    found: list[dict[str, float]] = [{}]

    def is_the_same() -> bool:
        time.sleep(1.2)  # longer than from one report to the next
        found.append(served(up.state()))
        return bool(found[-1]) and found[-1] == found[-2]

    up.until(is_the_same)
    return found[-1]


def test_a_renamed_tenant_keeps_its_keys_and_begins_an_account(tmp_path: Path) -> None:
    up = Up(tmp_path)
    try:
        up.until_ready()
        up.edit("  weight: 4\n", "  weight: 4\n  limits: {requestsPerMinute: 1}\n")
        up.until_reported("fleet.yaml applied")
        up.until(lambda: up.ask().status_code == 429)  # once the router has read the edit
        before = settled(up)
        up.edit("{name: ads}", "{name: marketing}")
        up.until_reported("tenant ads removed, tenant marketing added")
        up.until(lambda: up.ask().status_code == 200)  # once the router has read the edit
        assert up.ask().status_code == 429
        up.until(lambda: len(served(up.state())) == 2)
        after = served(up.state())
        old, new = (f"default/{name}/chat" for name in ("ads", "marketing"))
        assert set(before) == {old}
        assert after == before | {new: after[new]}
    finally:
        up.stop()
