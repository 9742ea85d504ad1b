"""What the plug-ins add to the engine's `/metrics` (design §8): the active policy, unreadable client keys, requests that bypassed the policy,
books that were rebuilt, and all requests."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

_ACTIVE: Final = Gauge(
    "evenkeel_engine_policy_active",
    "1 for the replica policy that orders the waiting queue.",
    ["policy"],
    multiprocess_mode="livemax",
)
_INACTIVE: Final = Gauge(
    "evenkeel_engine_plugin_inactive",
    "1 if this engine does not fit the plug-in, so that routers order the queue; the label has the reason.",
    ["reason"],
    multiprocess_mode="livemax",
)
_REFUSED: Final = Counter(
    "evenkeel_engine_client_key_refused",
    "Requests served as the unknown client because their client key is missing or invalid.",
    ["reason"],
)
_REQUESTS: Final = Counter(
    "evenkeel_engine_requests",
    "Requests that came into the waiting queue, probes of the engine excepted.",
)
_BYPASSED: Final = Counter(
    "evenkeel_engine_policy_bypassed",
    "Requests that entered the batch although the policy did not propose them.",
)

_STALLED: Final = Counter(
    "evenkeel_engine_stalls",
    "Times that the plug-in rebuilt its books, since requests waited and the policy proposed none for 5 s (60 s while requests ran).",
)


def active(policy: str) -> None:
    """Export that `policy` orders the waiting queue."""
    _ACTIVE.labels(policy=policy).set(1)


def inactive(reason: str) -> None:
    """Export that the engine's own order is in force."""
    _ACTIVE.labels(policy="none").set(0)
    _INACTIVE.labels(reason=reason).set(1)


def refused(reason: str) -> None:
    """Count a client key that could not be read."""
    _REFUSED.labels(reason=reason).inc()


def received() -> None:
    """Count a request that came into the waiting queue."""
    _REQUESTS.inc()


def bypassed() -> None:
    """Count a request that entered the batch unproposed."""
    _BYPASSED.inc()


def stalled() -> None:
    """Count books that were rebuilt."""
    _STALLED.inc()
