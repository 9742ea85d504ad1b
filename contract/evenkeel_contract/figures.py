"""The figures of a client: one record of one moment, and what two moments tell of the time between them. Pure.

A router makes the records (`evenkeel_router.ledger.clients`). Its metrics, `/v1/state`, its console and `evenkeel top` show them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec


class ClientFigures(msgspec.Struct, frozen=True, gc=False):
    """One client at one moment. Service, owed service and leads cover the whole fleet; all else is of one router."""

    identity: str
    """`namespace/tenant/client`; `namespace/tenant/*` for the other clients of a tenant together."""
    tenant: str
    name: str
    """Empty for the other clients of a tenant together."""
    # Totals of the fleet, which only grow.
    service: float = 0.0
    """Weighted tokens that the client received from all incarnations, past and present."""
    owed: float = 0.0
    """Weighted tokens that the client should have received."""
    # States of the fleet.
    requested_per_s: float = 0.0
    """Weighted tokens per second that the client requests from all routers."""
    waiting_service: float = 0.0
    """Weighted tokens that its requests at replicas will cost which wait."""
    lead_s: float = 0.0
    """Lead over the least served backlogged client of its tenant, in seconds of fair service."""
    backlogged: bool = False
    """Whether a request of the client waits at a replica."""
    # Totals of this router.
    requests: int = 0
    retries: int = 0
    relocations: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    answers: int = 0
    """Requests whose first token came."""
    ttft_s: float = 0.0
    """The sum over these."""
    itl_tokens: int = 0
    """Output tokens after the first one of each stream."""
    itl_s: float = 0.0
    """Seconds between these."""
    qoe_streams: int = 0
    """Streams whose quality of experience was measured."""
    qoe: float = 0.0
    """The sum over these."""
    in_flight: int = 0
    outcomes: Mapping[str, int] = {}
    """Requests that failed, by outcome."""
    # Which parts there are.
    is_served: bool = False
    """Whether the ledger has figures of it."""
    is_here: bool = False
    """Whether it sent this router a request."""
    # Where they were counted.
    waiting: int = 0
    """Requests that wait at replicas, and at this router's gates."""
    running: int = 0

    @property
    def errors(self) -> int:
        """Requests that failed."""
        return sum(self.outcomes.values())


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one window, of a client or of several together."""

    service_per_s: float = 0.0
    """Weighted tokens per second."""
    owed_per_s: float = 0.0
    """Owed service, weighted tokens per second; equal to the service while the client does not wait."""
    output_tokens_per_s: float = 0.0
    """Of requests that ended at this router."""
    ttft_s: float | None = None
    """Mean time to first token of requests that ended at this router; None without any."""
    hit_rate: float | None = None
    """Cached part of the input tokens of requests that ended at this router, 0 to 1; None without any."""
    qoe: float | None = None
    """Mean quality of experience of streams that ended at this router, 0 to 1; None where none was measured (`router.qoe`)."""
    waiting: int = 0
    """Requests that wait at replicas, and at this router's gates."""
    running: int = 0


NO_FIGURES: Final = Figures()
_COUNTED: Final = attrgetter(
    *("service", "owed", "output_tokens", "ttft_s", "answers", "cached_tokens", "input_tokens", "qoe", "qoe_streams")
)  # fmt: skip
_STATES: Final = attrgetter("waiting", "running")


def grown(now: float, before: float) -> float:
    """The growth of a total. One below the earlier one belongs to a new process and counts from 0."""
    return now - before if now >= before else now


def growth(now: ClientFigures, before: ClientFigures | None) -> tuple[float, ...]:
    """What `rates` needs: the growth of totals, from 0 without an earlier record, then the states. Growths of several clients add up."""
    totals = _COUNTED(now)
    return *(totals if before is None else map(grown, totals, _COUNTED(before))), *_STATES(now)


def rates(growth: Sequence[float], seconds: float) -> Figures:
    """The figures of a time in which totals grew so much."""
    (
        service,
        owed,
        output_tokens,
        ttft_s,
        answers,
        cached,
        inputs,
        qoe,
        streams,
        waiting,
        running,
    ) = growth
    per_s = 1 / seconds if seconds > 0 else 0.0
    return Figures(
        service_per_s=service * per_s,
        owed_per_s=owed * per_s,
        output_tokens_per_s=output_tokens * per_s,
        ttft_s=mean(ttft_s, answers),
        hit_rate=mean(cached, inputs),
        qoe=mean(qoe, streams),
        waiting=int(waiting),
        running=int(running),
    )


def mean(total: float, count: float) -> float | None:
    """A total over its count; None without any."""
    return total / count if count > 0 else None
