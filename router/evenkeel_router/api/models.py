"""The models behind one address: which service serves the `model` of a request, and what a tenant may use.

A model that a tenant may not use is answered like one that does not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.pools import offered_names
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.values import did_you_mean

from evenkeel_router.api.errors import Outcome, Refusal

LISTED: Final = 5
"""Most models that an error names."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A name that clients may send as `model`."""

    service: str
    """The service that serves it."""
    name: str
    served: str
    """The name in its place that replicas get."""
    parent: str | None = None
    """The model's usual name; None: this is a model's name itself."""


class ModelTable:
    """The names of all models behind one address. Immutable."""

    def __init__(self, config: RouterConfig) -> None:
        self.namespace = config.namespace
        self._tenants = {
            pool.service: None if pool.tenants is None else frozenset(pool.tenants)
            for pool in config.pools
        }
        self._by_name: dict[str, Offer] = {}
        bare = Counter(name for pool in config.pools for name in pool.adapters)
        for pool in config.pools:
            names = offered_names(pool)
            for name in names:
                served = pool.model if pool.names else name
                self._by_name[name] = Offer(pool.service, name, served)
        for pool in config.pools:
            first = offered_names(pool)[0]
            for adapter in pool.adapters:
                served = f"{pool.model}:{adapter}"
                for prefix in {*offered_names(pool), pool.model}:
                    name = f"{prefix}:{adapter}"
                    self._by_name.setdefault(name, Offer(pool.service, name, served, first))
                if bare[adapter] == 1:  # else the name alone does not say which
                    offer = Offer(pool.service, adapter, served, first)
                    self._by_name.setdefault(adapter, offer)
        self._fallbacks = {
            pool.service: tuple(self._by_name[name] for name in pool.fallback)
            for pool in config.pools
        }
        self._renames = frozenset(
            offer.name for offer in self._by_name.values() if offer.name != offer.served
        )

    @property
    def renames(self) -> dict[str, str]:
        """The names that replicas do not get as they are, with those that they get."""
        return {name: self._by_name[name].served for name in self._renames}

    def find(self, name: str | None, tenant: str) -> Offer:
        """The model that a tenant's request names. Without a name, the only one; raises `Refusal`."""
        if name is None:
            return self._only(tenant)
        offer = self._by_name.get(name)
        if offer is not None and self.may_use(offer.service, tenant):
            return offer
        raise self.unknown(name, tenant)

    def fallbacks(self, offer: Offer, tenant: str) -> tuple[Offer, ...]:
        """The models that may serve in place of one, and that the tenant may use; none in place of an adapter."""
        if offer.parent is not None:
            return ()
        return tuple(
            one for one in self._fallbacks[offer.service] if self.may_use(one.service, tenant)
        )

    def may_use(self, service: str, tenant: str) -> bool:
        """Whether a tenant may use a service's model."""
        allowed = self._tenants[service]
        return allowed is None or tenant in allowed

    def unknown(self, name: str, tenant: str) -> Refusal:
        """The refusal of a name, with the nearest one."""
        known = [offer.name for offer in self._offers(tenant) if offer.parent is None]
        message = (
            f"The model {name[:200]!r} does not exist, or this key may not use it"
            f"{did_you_mean(name, known)}. GET /v1/models lists the models."
        )
        return Refusal(Outcome.NOT_FOUND, message, code="model_not_found", param="model")

    def cards(self, tenant: str, *, created: int) -> list[dict[str, Any]]:
        """What a tenant may use, as OpenAI's list of models has it. An adapter is listed by its shortest name."""
        base = {"object": "model", "created": created, "owned_by": self.namespace}
        found, shown = [], set[tuple[str, str]]()
        for offer in sorted(self._offers(tenant), key=lambda offer: len(offer.name)):
            if offer.parent is None:
                found.append(base | {"id": offer.name})
            elif (offer.service, offer.served) not in shown:
                shown.add((offer.service, offer.served))
                found.append(base | {"id": offer.name, "parent": offer.parent})
        order = {name: number for number, name in enumerate(self._by_name)}
        return sorted(found, key=lambda card: order[card["id"]])

    def _offers(self, tenant: str) -> Iterator[Offer]:
        return (one for one in self._by_name.values() if self.may_use(one.service, tenant))

    def _only(self, tenant: str) -> Offer:
        offers = [offer for offer in self._offers(tenant) if offer.parent is None]
        if offers and len({offer.service for offer in offers}) == 1:
            return offers[0]
        names = [offer.name for offer in offers]
        some = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
        message = f"model is required: this address serves several models ({some or 'none for this key'})."
        raise Refusal(
            Outcome.INVALID_REQUEST, message, code="missing_required_parameter", param="model"
        )
