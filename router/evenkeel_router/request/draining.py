"""The end of a router: it serves each connection once more, refuses those that come late, and ends what lasts too long (DESIGN section 5).

A client with an open connection does not know that the router ends, nor does a node's proxy that is late, and many clients do
not repeat a request. In the second half of the time, connections close with their current answer: requests that a client sends
on them later would be cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Final

from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.request.intake import Intake

_log = logging.getLogger(__name__)
LATE_S: Final = 15.0
"""New connections are served for this long: a node's proxy may not know yet that the router ends."""
QUIET_S: Final = 0.5
"""Time without a request before the router ends: clients are about to send on connections that they keep."""
QUIET_ON_CLUSTER_S: Final = 2.0
"""Time without a request before a router ends on a cluster, where late proxies of nodes still send to it."""
ERRORS_S: Final = 5.0
"""Time for error events to be written after the time is up."""


async def drain(intake: Intake, config: RouterConfig, close_idle: Callable[[], None]) -> None:
    """Return when no request is in flight, or when `drain_timeout_s` is over. `close_idle`: no connection takes another request."""
    intake.draining = True
    intake.refuses_from_s = asyncio.get_running_loop().time() + LATE_S
    _log.info("draining: %d requests in flight", intake.admission.running)
    half_s = config.drain_timeout_s / 2
    quiet_s = min(QUIET_ON_CLUSTER_S if config.cluster else QUIET_S, half_s)
    if await _until_idle(intake, half_s, quiet_s=quiet_s):
        return
    close_idle()
    if not await _until_idle(intake, half_s):
        intake.refuses_from_s = -inf  # every new request is refused, on any connection
        for request_state in list(intake.active_requests):
            request_state.interrupt()
        await _until_idle(intake, ERRORS_S)


async def _until_idle(intake: Intake, timeout_s: float, *, quiet_s: float = 0.0) -> bool:
    """Whether no request was in flight for `quiet_s`, within the time."""
    loop = asyncio.get_running_loop()
    busy_s = loop.time()
    deadline_s = busy_s + timeout_s
    while intake.admission.running or loop.time() < busy_s + quiet_s:
        if intake.admission.running:
            busy_s = loop.time()
            if busy_s >= deadline_s:
                return False
        await asyncio.sleep(0.02)
    return True
