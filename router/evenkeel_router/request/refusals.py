"""What a client reads when its request ends without a replica's answer."""

from __future__ import annotations

from typing import Final

from evenkeel_router.api.errors import Outcome, Refusal

RETRY_AFTER_S: Final = 1.0
AT_ZERO_RETRY_AFTER_S: Final = 10.0
"""People, or an autoscaler that looks every 15 s, decide when a service leaves zero."""


def shutting_down() -> Refusal:
    """The router drains."""
    message = "The router is shutting down. Send the request again."
    return Refusal(Outcome.UNAVAILABLE, message, code="draining", retry_after_s=RETRY_AFTER_S)


def no_connection(why: str) -> Refusal:
    """The router's own limit of connections."""
    message = f"The router can open no more connections: {why}."
    return Refusal(Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=RETRY_AFTER_S)


def scaled_to_zero() -> Refusal:
    """The service was scaled to zero by hand."""
    message = "The service is scaled to zero replicas, and requests do not start one."
    return Refusal(
        Outcome.UNAVAILABLE, message, code="scaled_to_zero", retry_after_s=AT_ZERO_RETRY_AFTER_S
    )


def no_replica(why: str, waited_s: float, *, at_zero: bool) -> Refusal:
    """No replica was routable within the request's time."""
    if at_zero:
        message = (
            f"The service was at zero replicas, and none was ready within {waited_s:g} s: {why}."
        )
    else:
        message = f"No replica was ready within {waited_s:g} s: {why}."
    return Refusal(Outcome.UNAVAILABLE, message, code="no_replica", retry_after_s=RETRY_AFTER_S)


def failed_everywhere() -> Refusal:
    """No replica is left to try."""
    message = "Every replica failed to answer the request."
    return Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed")


def failed(attempts: int, why: str) -> Refusal:
    """No attempt is left."""
    message = f"The request failed on {attempts} replicas; on the last, {why}."
    return Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed")


def broken_off(why: str) -> Refusal:
    """A replica failed in the middle of a stream."""
    message = f"The stream broke off: {why}."
    return Refusal(Outcome.REPLICA_FAILED, message, code="replica_failed")


def silent(message: str) -> Refusal:
    """A replica took longer than it may."""
    return Refusal(Outcome.TIMEOUT, message, code="replica_timeout")


def not_reading(idle_s: float) -> Refusal:
    """The client does not read its answer."""
    message = f"The client read nothing for {idle_s:g} s."
    return Refusal(Outcome.CLIENT_GONE, message, code="client_not_reading")
