"""All parts listen on both families by `::`, and work where there is IPv6 alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import consecutive_ports

ROOT = Path(__file__).parents[2]
OWN = "[fd00:1::1]"
IPV6_ALONE = (
    "ip link set lo up && ip -4 addr flush dev lo && ip -6 addr add fd00:1::1/128 dev lo nodad && "
    '[ -z "$(ip -4 addr)" ] && exec "$@"'
)
"""As the program of a new network namespace: no IPv4 address, not even 127.0.0.1."""


def answers(*addresses: str, prefix: tuple[str, ...] = ()) -> dict[str, list[int]]:
    """What the parts answer at each address; the first one is that of the replicas."""
    command = [sys.executable, "-m", "tests.support.families", str(consecutive_ports(12))]
    done = subprocess.run(
        [*prefix, *command, *addresses], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


def test_both_families_reach_every_part() -> None:
    want = [200, 200, 200]
    assert answers("127.0.0.1", "[::1]") == {"127.0.0.1": want, "[::1]": want}
    assert answers("[::1]") == {"[::1]": want}


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and ip")
def test_a_fleet_works_with_ipv6_alone() -> None:
    alone = ("unshare", "--net", "sh", "-c", IPV6_ALONE, "sh")
    assert answers(OWN, prefix=alone) == {OWN: [200, 200, 200]}
