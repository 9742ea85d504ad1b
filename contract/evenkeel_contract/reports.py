"""Reports: a replica's cumulative totals per client, the source of truth of the ledger (design R3).

A router pulls: it sends a `ReportRequest` over a ZeroMQ DEALER to the replica's ROUTER socket (port 5559)
and gets one `Report`. Totals are cumulative, so an answer that is lost, repeated or late does no harm, and
"replay" is nothing but asking with an older `since`. Bytes are MessagePack.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

REPORT_VERSION: Final = 1

_MAX_FLOAT: Final = 1.7976931348623157e308
Total = Annotated[int, msgspec.Meta(ge=0)]
ServiceTotal = Annotated[float, msgspec.Meta(ge=0, le=_MAX_FLOAT)]
Finite = Annotated[float, msgspec.Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]
"""One replica's infinity or NaN would spoil the ledger of the whole fleet."""


class ClientReport(msgspec.Struct, frozen=True, array_like=True):
    """One client at one replica incarnation. Totals since the process started; they never fall."""

    client: str
    """`namespace/tenant/client`."""
    extend_tokens: Total
    """Input tokens computed for the client."""
    cached_tokens: Total
    """Input tokens found in the cache."""
    output_tokens: Total
    service: ServiceTotal
    """h as charged, weighted tokens, before any weight."""
    normalised: ServiceTotal
    """Service divided by the client's weight at the time of each charge."""
    tenant_normalised: ServiceTotal
    """Service divided by the tenant's weight at the time of each charge."""
    requests: Total
    """Requests admitted."""
    # State, not totals.
    deficit: Finite
    tenant_deficit: Finite
    waiting: Total
    running: Total
    # What the deficits started from here (R5). The first seed per incarnation wins, so only the replica knows
    # which one that was.
    seed: Finite = 0.0
    tenant_seed: Finite = 0.0
    # Totals again: what was broken off after it had begun (R11). Replicas of before they were made leave them out.
    aborted: Total = 0
    """Requests."""
    aborted_tokens: Total = 0
    """Output tokens charged for those."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """A replica's answer: every client that changed after `since`."""

    version: int
    incarnation: str
    """Unique to the process: a restart is a new incarnation."""
    sequence: Total
    """Ask with this as `since` next time."""
    since: Total
    """0 when the answer is complete, which it is whenever the asker's incarnation is not this one."""
    policy: str
    clients: tuple[ClientReport, ...]


class ReportRequest(msgspec.Struct, frozen=True, array_like=True):
    """A router's question."""

    version: int
    incarnation: str
    """The incarnation that `since` belongs to; empty at first."""
    since: Total


_encoder = msgspec.msgpack.Encoder()
_report = msgspec.msgpack.Decoder(Report)
_request = msgspec.msgpack.Decoder(ReportRequest)
# Beyond its own errors, msgspec lets bad UTF-8 and endless nesting through as they are.
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class ReportError(ValueError):
    """A report or a question that is not well formed or of an unknown version."""


def encode(message: Report | ReportRequest) -> bytes:
    """Encode a report or a question."""
    return _encoder.encode(message)


def decode_report(data: bytes) -> Report:
    """Decode a report; raises `ReportError`."""
    try:
        message = _report.decode(data)
    except _UNREADABLE as error:
        raise ReportError(f"not a report: {error}") from error
    return _of_known_version(message)


def decode_request(data: bytes) -> ReportRequest:
    """Decode a question; raises `ReportError`."""
    try:
        message = _request.decode(data)
    except _UNREADABLE as error:
        raise ReportError(f"not a question for a report: {error}") from error
    return _of_known_version(message)


_Message = TypeVar("_Message", Report, ReportRequest)


def _of_known_version(message: _Message) -> _Message:
    if message.version != REPORT_VERSION:
        raise ReportError(f"version {message.version} is not {REPORT_VERSION}")
    return message
