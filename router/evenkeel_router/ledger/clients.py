"""The figures of every client: one record a client, out of the ledger's figures and this router's totals. Pure.

The metrics, `/v1/state`, the console and its history all show these records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import copy
from operator import attrgetter
from typing import Final, NamedTuple

from evenkeel_contract.figures import Figures, grown, mean

from evenkeel_router.api.identity import names_of
from evenkeel_router.ledger.fairness import NO_FIGURES, FleetFigures, MemberFigures
from evenkeel_router.ledger.totals import NO_TOTALS, ClientTotals, RequestTotals


class ClientFigures(NamedTuple):
    """One client at one moment."""

    identity: str
    """`namespace/tenant/client`; `namespace/tenant/*` for the other clients of a tenant together."""
    tenant: str
    name: str
    """Name of the client; empty for the other clients of a tenant together."""
    fleet: MemberFigures = NO_FIGURES
    """Figures over the whole fleet, out of the ledger; `NO_FIGURES` without any."""
    here: ClientTotals = NO_TOTALS
    """A copy of this router's totals; `NO_TOTALS` of a client that sent it no request."""
    waiting: int = 0
    """Requests that wait at replicas and at this router's gates; 0 unless they were counted, like the running ones."""
    running: int = 0


def client_figures(
    now: FleetFigures,
    totals: RequestTotals,
    also: Collection[str] = (),
    *,
    waiting: Mapping[str, int] | None = None,
    running: Mapping[str, int] | None = None,
) -> Iterator[ClientFigures]:
    """Every client that was served anywhere or is known here, and those in `also`, each once. A client may come meanwhile.

    `waiting` and `running`: requests by client, where they were counted.
    """
    here = {own.identity: own for own in totals.clients()}
    for identity in dict.fromkeys((*also, *now.clients, *here)):
        tenant, name = names_of(identity)
        yield ClientFigures(
            identity,
            tenant,
            name,
            now.clients.get(identity, NO_FIGURES),
            copy(here[identity]) if identity in here else NO_TOTALS,
            waiting.get(identity, 0) if waiting else 0,
            running.get(identity, 0) if running else 0,
        )


_TOTALS: Final = attrgetter(
    *("fleet.service", "fleet.owed", "here.output_tokens", "here.ttft_s", "here.answers"),
    *("here.cached_tokens", "here.input_tokens", "here.qoe", "here.qoe_streams"),
    *("here.itl_s", "here.itl_tokens"),
)
Growth = tuple[float, ...]
"""The growth of these totals, then `waiting` and `running` as they are. Those of several clients add up."""


def growth(now: ClientFigures, before: ClientFigures | None) -> Growth:
    """The growth since an earlier moment; from 0 without one."""
    totals = _TOTALS(now)
    more = totals if before is None else map(grown, totals, _TOTALS(before))
    return *more, now.waiting, now.running


def rates(more: Growth, seconds: float) -> Figures:
    """The figures of a time in which totals grew so much."""
    service, owed, output_tokens, ttft_s, answers, cached, inputs, qoe, streams, *rest = more
    itl_s, itl_tokens, waiting, running = rest
    per_s = 1 / seconds if seconds > 0 else 0.0
    return Figures(
        service_per_s=service * per_s,
        owed_per_s=owed * per_s,
        output_tokens_per_s=output_tokens * per_s,
        ttft_s=mean(ttft_s, answers),
        hit_rate=mean(cached, inputs),
        qoe=mean(qoe, streams),
        itl_s=mean(itl_s, itl_tokens),
        waiting=int(waiting),
        running=int(running),
    )
