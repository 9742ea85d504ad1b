"""What the plug-in adds to SGLang's `/metrics` (design §8): which policy runs, and keys it could not read."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

_ACTIVE: Final = Gauge(
    "evenkeel_engine_policy_active",
    "1 if Evenkeel's replica policy orders the waiting queue.",
    ["policy"],
    multiprocess_mode="livemax",
)
_REFUSED: Final = Counter(
    "evenkeel_engine_client_key_refused",
    "Requests of the unknown client, because their client key is missing or malformed.",
    ["reason"],
)


def active(policy: str) -> None:
    """`policy` is in charge."""
    _ACTIVE.labels(policy=policy).set(1)


def refused(reason: str) -> None:
    """A client key could not be read."""
    _REFUSED.labels(reason=reason).inc()
