"""Reports: a replica's cumulative totals per client, the source of truth of the ledger (design R3).

A router pulls: it sends a `ReportRequest` over a ZeroMQ DEALER to the replica's ROUTER socket (port 5559)
and gets one `Report`. Totals are cumulative, so a lost, repeated or late answer does no harm. A router
that needs older changes asks with an older `since`. Bytes are MessagePack.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from evenkeel_contract.messages import check_version, read

REPORT_VERSION: Final = 1

IDLE_S: Final = 600.0
"""A replica gives back the row of a client after so long without a change at most, and routers after twice as long."""
IDLE_LOOK_S: Final = IDLE_S / 2
"""Time between two looks at what is idle: what did not change from one to the next is."""

_MAX_FLOAT: Final = 1.7976931348623157e308
Total = Annotated[int, msgspec.Meta(ge=0)]
ServiceTotal = Annotated[float, msgspec.Meta(ge=0, le=_MAX_FLOAT)]
Finite = Annotated[float, msgspec.Meta(ge=-_MAX_FLOAT, le=_MAX_FLOAT)]
"""Finite, because the infinity or NaN of one replica would spoil the ledger of the whole fleet."""


class ClientReport(msgspec.Struct, array_like=True, gc=False):
    """What one client was served at one replica incarnation: the one declaration of these numbers.

    The replica's accounts, its reports and the router's input are this record. Totals count since the process
    started and never fall. New fields go to the end and have a default: routers read reports of older replicas.
    It has no references for the garbage collector to follow, so a hundred thousand of them cost it nothing.
    """

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
    """Service divided by the tenant's weight at the time of each charge. Nothing reads it; its place in the row stays."""
    requests: Total
    """Requests admitted."""
    # State, not totals.
    deficit: Finite
    tenant_deficit: Finite
    waiting: Total
    running: Total
    # The first deficits here (R5). The first seed per incarnation wins, so only the replica knows it.
    seed: Finite = 0.0
    tenant_seed: Finite = 0.0
    # Totals again: requests that were aborted after their admission (R11). Older replicas omit these fields.
    aborted: Total = 0
    """Requests that were aborted after their admission."""
    aborted_tokens: Total = 0
    """Output tokens charged for those."""
    # Totals too: inter-token latency. The time from the first to the newest token of each request, over its tokens after the first.
    itl_tokens: Total = 0
    """Output tokens after the first one of each request."""
    itl_s: ServiceTotal = 0.0
    """Seconds between those tokens."""


def unserved(client: str) -> ClientReport:
    """The record of a client that was not served yet."""
    return ClientReport(client, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 0, 0)


class Report(msgspec.Struct, frozen=True, array_like=True):
    """A replica's answer: every client that changed after `since`.

    A row whose client ends with `*`, such as `namespace/tenant/client*`, says that the replica gave that client's row back: its totals
    are in the row `namespace/tenant/*`, which comes later, and it begins at zero if it returns.
    """

    version: int
    incarnation: str
    """Unique to the process: a restart is a new incarnation."""
    sequence: Total
    """The `since` of the next request."""
    since: Total
    """0 if the answer is complete, as it always is for an asker that names another incarnation."""
    policy: str
    clients: tuple[ClientReport, ...]
    quantum: ServiceTotal = 0.0
    """DLPM: Q^u in force, in weighted tokens. 0 from other policies and from older replicas."""
    inactive: str = ""
    """Why the replica policy does not order the queue, so that routers must. Empty: it does. There are no clients otherwise."""
    requests: Total = 0
    """Requests of all clients that were admitted. 0 from older replicas."""
    unnamed: Total = 0
    """Requests of the unknown client among them: they came without a readable client key."""


class ReportRequest(msgspec.Struct, frozen=True, array_like=True):
    """A router's request for a report."""

    version: int
    incarnation: str
    """The incarnation that `since` belongs to; empty at first."""
    since: Total


_encoder = msgspec.msgpack.Encoder()
_report = msgspec.msgpack.Decoder(Report)
_request = msgspec.msgpack.Decoder(ReportRequest)


class ReportError(ValueError):
    """A report or a request is malformed or has an unknown version."""


def encode(message: Report | ReportRequest) -> bytes:
    """Encode a report or a request."""
    return _encoder.encode(message)


def decode_report(data: bytes) -> Report:
    """Decode a report; raises `ReportError`."""
    report = read(_report, data, what="a report", error=ReportError)
    check_version(report.version, REPORT_VERSION, ReportError)
    return report


def decode_request(data: bytes) -> ReportRequest:
    """Decode a request; raises `ReportError`."""
    request = read(_request, data, what="a request for a report", error=ReportError)
    check_version(request.version, REPORT_VERSION, ReportError)
    return request
