"""Whether this machine has the memory for the processes that a file asks for."""

from __future__ import annotations

from typing import Final

from evenkeel_cli.up.errors import FleetError

MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB

# Memory of a process: its own pages and its part of shared ones (PSS), on x86-64 with Python 3.11. Processes grow
# with their load, so the figures are those after 1500 prompts of 3000 tokens without a common prefix.

# 31 MiB at the start, 98 MiB with a full simulated cache.
SIMULATED_REPLICA_BYTES: Final = 100 * MIB
# 46 MiB at the start, 130 MiB with 4.5 million tokens in the prefix index.
ROUTER_BYTES: Final = 130 * MIB
# The four processes of SGLang 0.5.23 with a tiny model on the CPU; the two of vLLM 0.32 take 1800. Weights are added.
SGLANG_REPLICA_BYTES: Final = 1900 * MIB
# For `evenkeel up` itself, a load generator and the page cache.
RESERVED_BYTES: Final = 512 * MIB


def check_memory(
    *,
    field: str,
    kept: int,
    started: int,
    replica_bytes: int,
    routers_started: int,
    available_bytes: int,
) -> None:
    """Raise `FleetError` if the new processes need more memory than is available.

    `field` sets the number of replicas: `kept` run already, `started` are new. A replica that is replaced runs until
    the new ones are ready, so it frees no memory for them.
    """
    free_bytes = max(0, available_bytes - RESERVED_BYTES)
    routers_that_fit = free_bytes // ROUTER_BYTES
    if routers_started > routers_that_fit:
        raise FleetError(
            f"spec.router.replicas: {routers_started} new routers need {_size(ROUTER_BYTES)} of "
            f"memory each, and {_size(free_bytes)} are free: at most {routers_that_fit} fit"
        )
    free_bytes -= routers_started * ROUTER_BYTES
    replicas_that_fit = free_bytes // replica_bytes
    if started > replicas_that_fit:
        raise FleetError(
            f"{field} is {kept + started}, and at most {kept + replicas_that_fit} fit on this machine: "
            f"{started} new replicas need {_size(replica_bytes)} of memory each, and "
            f"{_size(free_bytes)} are free"
        )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes // MIB} MiB"
