"""Who pays for what: the one place that decides what a request costs at a replica (R11, R18). Pure.

| how the request ends at a replica                       | input                      | output           |
|---------------------------------------------------------|----------------------------|------------------|
| finished, or cut by the router                          | reported within its bounds, else the estimate | reported within its bounds, else counted |
| its client left after the first content                 | the same                   | the same         |
| its client left before, once the request may have begun | the estimate               | none             |
| its client left before, and the request only waited     | none                       | none             |
| refused by the engine (4xx or 503, also inside a 200)   | none                       | none             |
| broken off after the first content                      | as finished                | as finished      |
| another 5xx, garbage, broken or silent before it        | the estimate, if a report or content that was held shows that it had begun; else none | none |
| relocated                                               | as reports show, once      | as reports show, once |
| preempted inside the engine                             | once: the engine's reports | once             |

A charge has three books: the ledger (service), the tenant's token limit, and the client's totals. All three get the same; where the
replica reports, the ledger has the replica's own count of what it computed for a client that left before the first content. What one
attempt was charged, the next one does not pay again (`Paid`), so a retry or a relocation costs its client nothing more. A 502 or a
504 costs nothing, but for input of which a report, or held content, shows that it was computed.

At a gate a request that may have begun keeps its charge in doubt: it is no account but an order, in which requests that fail
would go before all others.
"""

from __future__ import annotations

from enum import Enum

from evenkeel_fairshare.fleet.contract import NOTHING, Usage


class Computed(Enum):
    """Whether a replica had computed the input of a request that ended there without content."""

    NO = "no"  # its last report shows that it only waited, or none came yet: the next one will have what was computed
    UNKNOWN = "unknown"  # the engine sends no reports
    YES = "yes"  # its last report shows it


def charge_of(
    usage: Usage | None, computed: Computed, estimate: Usage, *, client_left: bool
) -> Usage:
    """What a request is charged at one replica. `usage`: `NOTHING` where the replica refused it, None without content."""
    if usage is not None:
        return usage
    pays = computed is Computed.YES or (client_left and computed is Computed.UNKNOWN)
    return estimate if pays else NOTHING
