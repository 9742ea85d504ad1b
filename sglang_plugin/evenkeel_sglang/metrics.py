"""What the plug-in adds to SGLang's `/metrics` (design §8): the active policy, and unreadable client keys."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

_ACTIVE: Final = Gauge(
    "evenkeel_engine_policy_active",
    "1 for the replica policy that orders the waiting queue.",
    ["policy"],
    multiprocess_mode="livemax",
)
_REFUSED: Final = Counter(
    "evenkeel_engine_client_key_refused",
    "Requests served as the unknown client because their client key is missing or invalid.",
    ["reason"],
)


def active(policy: str) -> None:
    """`policy` orders the waiting queue."""
    _ACTIVE.labels(policy=policy).set(1)


def refused(reason: str) -> None:
    """A client key could not be read."""
    _REFUSED.labels(reason=reason).inc()
