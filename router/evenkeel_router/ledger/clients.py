"""The figures of every client: one record a client, out of the ledger's figures and this router's totals. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import Final

from evenkeel_contract.figures import ClientFigures

from evenkeel_router.api.identity import names_of
from evenkeel_router.ledger.fairness import NO_FIGURES, FleetFigures
from evenkeel_router.ledger.totals import RequestTotals

# In the order of `ClientFigures`.
_OF_FLEET: Final = attrgetter(
    "service", "owed", "requested_per_s", "waiting", "lead_s", "backlogged"
)
_HERE: Final = attrgetter(
    *("requests", "retries", "relocations", "input_tokens", "cached_tokens", "output_tokens", "answers", "ttft_s"),
    *("itl_tokens", "itl_s", "qoe_streams", "qoe", "in_flight"),
)  # fmt: skip
_NOTHING_HERE: Final = (0,) * 13


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
        own, of_fleet = here.get(identity), now.clients.get(identity)
        tenant, name = names_of(identity)
        found = (
            *_OF_FLEET(of_fleet or NO_FIGURES),
            *(_NOTHING_HERE if own is None else _HERE(own)),
            {} if own is None else {why.value: count for why, count in own.errors.items()},
            of_fleet is not None,
            own is not None,
            waiting.get(identity, 0) if waiting else 0,
            running.get(identity, 0) if running else 0,
        )
        yield ClientFigures(identity, tenant, name, *found)
