"""The weights of tenants and clients, and the shares of backlogged clients (design §3, R9).

Weights appear in two forms. A *weight* is a property of one client, its tenant's times its own, and does not change as
others come and go; it scales quanta. A *share* is a fraction of the fleet among the clients that are backlogged now,
first between tenants, then within each. Q^w is scaled by the weight: a share would shrink with every client that becomes
active, and with it the credit that keeps a client near its cached prefixes. The price: a tenant's clients together may
stay near their prefixes longer than another tenant's single client. That costs no fairness, as Q^w is in no bound (R2);
replicas enforce the tree (R9).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from evenkeel_fairshare.ledger import tenant_of


@dataclass(frozen=True, slots=True)
class ClientWeight:
    """A client's weight at each level of the tree."""

    tenant: float = 1.0
    client: float = 1.0

    @property
    def fleet(self) -> float:
        """The flat weight that scales Q^w, and that flat algorithms divide by. 1: an ordinary client."""
        return self.tenant * self.client


def shares(
    backlogged: Iterable[str], client: Callable[[str], float], tenant: Callable[[str], float]
) -> dict[str, float]:
    """Backlogged client → its share of the fleet; shares add up to 1 (R9).

    `backlogged` are identities, `client` and `tenant` return weights. The fleet is divided among the tenants that have
    a backlogged client, by their weights; each part among those clients by theirs. So a tenant with one gets what a
    tenant with fifty gets.
    """
    tenants: defaultdict[str, list[str]] = defaultdict(list)
    for name in backlogged:
        tenants[tenant_of(name)].append(name)
    all_tenants = sum(map(tenant, tenants))
    return {
        name: tenant(parent) / all_tenants * client(name) / siblings
        for parent, names in tenants.items()
        for siblings in (sum(map(client, names)),)
        for name in names
    }


def divided(
    amount: float,
    most: Mapping[str, float],
    client: Callable[[str], float],
    tenant: Callable[[str], float],
) -> dict[str, float]:
    """`amount` in shares of the clients in `most`, to none more than its `most`.

    `most` is by identity, in the unit of `amount`, and may be infinite; `client` and `tenant` return weights. What a client
    cannot take goes to its tenant's other clients; what a tenant cannot take goes to the other tenants, by weight (R9).
    The parts add up to `amount`, or to all of `most` if that is less.
    """
    tenants: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for name, limit in most.items():
        tenants[tenant_of(name)][name] = limit
    sums = {parent: sum(limits.values()) for parent, limits in tenants.items()}
    parts = _filled(amount, sums, tenant)
    return {
        name: part
        for parent, limits in tenants.items()
        for name, part in _filled(parts[parent], limits, client).items()
    }


def _filled(
    amount: float, most: Mapping[str, float], weight: Callable[[str], float]
) -> dict[str, float]:
    """`amount` in proportion to weights, no part above its `most`: those that are full first come first."""
    order = sorted(most, key=lambda name: most[name] / weight(name))
    rests = [*accumulate(map(weight, reversed(order)))]
    parts = {}
    for name, rest in zip(order, reversed(rests), strict=True):
        parts[name] = min(most[name], amount * weight(name) / rest)
        amount -= parts[name]
    return parts
