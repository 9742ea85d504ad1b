"""How many processes fit into the memory of a machine."""

from __future__ import annotations

import pytest
from evenkeel_cli.up.capacity import (
    GIB,
    MIB,
    RESERVED_BYTES,
    ROUTER_BYTES,
    SIMULATED_REPLICA_BYTES,
    check_memory,
)
from evenkeel_cli.up.errors import FleetError


def check(
    *, started: int, free_bytes: int, kept: int = 0, routers: int = 0, replica_bytes: int = GIB
) -> None:
    check_memory(
        field="spec.engine.replicas",
        kept=kept,
        started=started,
        replica_bytes=replica_bytes,
        routers_started=routers,
        available_bytes=free_bytes + RESERVED_BYTES,
    )


def test_processes_that_fit_exactly_are_accepted() -> None:
    check(started=8, free_bytes=8 * GIB)
    check(started=8, free_bytes=8 * GIB + 2 * ROUTER_BYTES, routers=2)
    check(started=0, free_bytes=0)
    check(started=0, free_bytes=-RESERVED_BYTES)


def test_the_refusal_states_the_number_that_fits() -> None:
    with pytest.raises(FleetError) as caught:
        check(started=198, kept=2, free_bytes=5 * GIB, replica_bytes=SIMULATED_REPLICA_BYTES)
    assert str(caught.value) == (
        "spec.engine.replicas is 200, and at most 53 fit on this machine: 198 new replicas need "
        "100 MiB of memory each, and 5.0 GiB are free"
    )
    check(started=51, kept=2, free_bytes=5 * GIB, replica_bytes=SIMULATED_REPLICA_BYTES)


def test_routers_take_their_part_first() -> None:
    with pytest.raises(FleetError, match="at most 7 fit on this machine: 8 new replicas"):
        check(started=8, free_bytes=8 * GIB, routers=1)
    with pytest.raises(FleetError, match=r"spec\.router\.replicas: 9 new .*: at most 2 fit"):
        check(started=0, free_bytes=2 * ROUTER_BYTES + 1 * MIB, routers=9)
