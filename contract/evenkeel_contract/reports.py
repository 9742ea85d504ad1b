"""Reports: a replica's cumulative totals per client, the source of truth of the ledger (design R3).

A router pulls: it sends a `ReportRequest` over a ZeroMQ DEALER to the replica's ROUTER socket (port 5559)
and gets one `Report`. Totals are cumulative, so an answer that is lost, repeated or late does no harm, and
"replay" is nothing but asking with an older `since`. Bytes are MessagePack.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

REPORT_VERSION: Final = 1


class ClientReport(msgspec.Struct, frozen=True, array_like=True):
    """One client at one replica incarnation. Totals since the process started; they never fall."""

    client: str
    """`namespace/tenant/client`."""
    extend_tokens: int
    """Input tokens computed for the client."""
    cached_tokens: int
    """Input tokens found in the cache."""
    output_tokens: int
    service: float
    """h as charged, weighted tokens, before any weight."""
    normalised: float
    """Service divided by the client's weight at the time of each charge."""
    tenant_normalised: float
    """Service divided by the tenant's weight at the time of each charge."""
    requests: int
    """Requests admitted."""
    # State, not totals.
    deficit: float
    tenant_deficit: float
    waiting: int
    running: int


class Report(msgspec.Struct, frozen=True, array_like=True):
    """A replica's answer: every client that changed after `since`."""

    version: int
    incarnation: str
    """Unique to the process: a restart is a new incarnation."""
    sequence: int
    """Ask with this as `since` next time."""
    since: int
    """0 when the answer is complete, which it is whenever the asker's incarnation is not this one."""
    policy: str
    clients: tuple[ClientReport, ...]


class ReportRequest(msgspec.Struct, frozen=True, array_like=True):
    """A router's question."""

    version: int
    incarnation: str
    """The incarnation that `since` belongs to; empty at first."""
    since: int


_encoder = msgspec.msgpack.Encoder()
_report = msgspec.msgpack.Decoder(Report)
_request = msgspec.msgpack.Decoder(ReportRequest)


class ReportError(ValueError):
    """A report or a question that is not well formed or of an unknown version."""


def encode(message: Report | ReportRequest) -> bytes:
    """Encode a report or a question."""
    return _encoder.encode(message)


def decode_report(data: bytes) -> Report:
    """Decode a report; raises `ReportError`."""
    try:
        message = _report.decode(data)
    except msgspec.MsgspecError as error:
        raise ReportError(f"not a report: {error}") from error
    return _of_known_version(message)


def decode_request(data: bytes) -> ReportRequest:
    """Decode a question; raises `ReportError`."""
    try:
        message = _request.decode(data)
    except msgspec.MsgspecError as error:
        raise ReportError(f"not a question for a report: {error}") from error
    return _of_known_version(message)


_Message = TypeVar("_Message", Report, ReportRequest)


def _of_known_version(message: _Message) -> _Message:
    if message.version != REPORT_VERSION:
        raise ReportError(f"version {message.version} is not {REPORT_VERSION}")
    return message
