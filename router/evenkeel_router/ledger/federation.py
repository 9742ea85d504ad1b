"""The other cells of the service (R21): the figures that this one sends and receives, and the weights of its tenants.

Each router asks each other cell once per interval. The routers of a cell have the same ledger, so any of them may answer for it, and each
computes the same weights but for the moment. They take the place of the configured ones: in client keys, and so at the engines,
and in all figures about shares in this cell. A cell that was silent for three intervals does not count.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import aiohttp
from evenkeel_contract.cellswire import (
    CELL_PATH,
    MAX_CELL_BYTES,
    CellFigures,
    CellMessageError,
    TenantRates,
    decode,
)
from evenkeel_contract.federationconfig import CellConfig, FederationConfig
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_fairshare.cells import CellSums, TenantInCell, demand_of, local_weights

from evenkeel_router.api.identity import tenant_identity
from evenkeel_router.ledger.contacts import CellContact
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.ledger.tenant_rates import TenantMeter, weight_in_keys

_log = logging.getLogger(__name__)
ANSWER_S: Final = 10.0
"""Longest wait for a cell."""
UNJOINED_S: Final = 1.0
"""Time between two looks whether the service has got other cells."""
SILENT_INTERVALS: Final = 3
TOLERANCE: Final = 0.02
"""A weight that changes by less than this part of it stays: each change costs the routers and engines some work."""


class Federation:
    """One router's view of all cells."""

    def __init__(
        self,
        config: RouterConfig,
        service_ledger: ServiceLedger,
        session: aiohttp.ClientSession,
        *,
        reweighed: Callable[[], Awaitable[None]],
    ) -> None:
        """`reweighed` is called after the weights have changed."""
        self.configured = config
        """The configuration without the weights of this cell."""
        self._service_ledger = service_ledger
        self._session = session
        self._reweighed = reweighed
        self._now = asyncio.get_running_loop().time
        self._meter = TenantMeter()
        self.own = nothing_yet(config)
        """The figures of this cell for the others; none before its first interval has passed."""
        self._trust: tuple[str | None, ssl.SSLContext | bool] = None, True
        """The configured certificates, and whom connections trust by them."""
        self.weights: Mapping[str, float] = {}
        """Tenant → its weight in this cell, where it is not the configured one."""

    def take(self, config: RouterConfig) -> RouterConfig:
        """Take a new configuration; returns it with the weights of this cell."""
        if config.federation != self.configured.federation:
            self.weights, self.own, self._meter = {}, nothing_yet(config), TenantMeter()
            self._service_ledger.cell_contacts = {}
        self.configured = config
        return self.in_force()

    @property
    def contacts(self) -> dict[CellConfig, CellContact]:
        """The last contact with every other cell."""
        return self._service_ledger.cell_contacts

    @property
    def expected(self) -> str | None:
        """The token of other cells; None if there are none."""
        federation = self.configured.federation
        return None if federation is None else federation.token

    def admits(self, token: str) -> bool:
        """Whether a question of another cell has the right token."""
        return hmac.compare_digest(token.encode(errors="replace"), (self.expected or "").encode())

    async def run(self) -> None:
        """Exchange figures and renew the weights, until cancelled."""
        while True:
            federation = self.configured.federation
            if federation is None:
                await asyncio.sleep(UNJOINED_S)
                continue
            self._measure(federation)
            await self._ask_all(federation)
            if federation is self.configured.federation:
                await self._weigh(federation)
            await asyncio.sleep(federation.interval_s)

    def _measure(self, federation: FederationConfig) -> None:
        tenants = self._service_ledger.fairness.now.tenants
        rates = self._meter.rates(tenants, self._now())
        if rates is None:
            return
        capacity = sum(rates.values())
        demand = {
            name: demand_of(
                rate, tenants[name].waiting, capacity=capacity, interval_s=federation.interval_s
            )
            for name, rate in rates.items()
        }
        self.own = CellFigures(
            cell=federation.cell,
            capacity=capacity,
            tenants={
                name: TenantRates(rates[name], asked) for name, asked in demand.items() if asked > 0
            },
        )

    async def _ask_all(self, federation: FederationConfig) -> None:
        known = self.contacts
        contacts = self._service_ledger.cell_contacts = {
            cell: known.get(cell) or CellContact(since_s=self._now()) for cell in federation.cells
        }
        await asyncio.gather(
            *(self._ask(cell, contact, federation) for cell, contact in contacts.items())
        )

    async def _ask(
        self, cell: CellConfig, contact: CellContact, federation: FederationConfig
    ) -> None:
        try:
            figures = await self._answer(cell, federation)
            if figures.cell != cell.name:
                raise CellMessageError(f"it calls itself {figures.cell!r}")
        except (aiohttp.ClientError, TimeoutError, OSError, CellMessageError) as error:
            trouble = str(error) or type(error).__name__
            if not contact.error:
                _log.warning("cell %s does not send its figures: %s", cell.name, trouble)
            contact.error = trouble
        else:
            if contact.error:
                _log.info("cell %s answers again", cell.name)
            contact.figures, contact.answered_s, contact.error = figures, self._now(), ""

    async def _answer(self, cell: CellConfig, federation: FederationConfig) -> CellFigures:
        async with self._session.get(
            cell.url + CELL_PATH,
            headers={"Authorization": f"Bearer {federation.token}"},
            timeout=aiohttp.ClientTimeout(total=ANSWER_S),
            allow_redirects=False,
            ssl=self._trusted(federation.ca),
        ) as response:
            if response.status != 200:
                raise CellMessageError(f"it answered {response.status}")
            body = await response.content.read(MAX_CELL_BYTES + 1)
            while len(body) <= MAX_CELL_BYTES and (more := await response.content.read(2**20)):
                body += more
            if len(body) > MAX_CELL_BYTES:
                raise CellMessageError(f"its answer is longer than {MAX_CELL_BYTES} bytes")
            return decode(body)

    def _trusted(self, ca: str | None) -> ssl.SSLContext | bool:
        """Whom connections trust: these authorities, or the system's. Raises `CellMessageError`."""
        if ca != self._trust[0]:
            try:
                self._trust = ca, True if ca is None else ssl.create_default_context(cadata=ca)
            except ssl.SSLError as error:
                raise CellMessageError(f"federation.ca cannot be read: {error}") from error
        return self._trust[1]

    async def _weigh(self, federation: FederationConfig) -> None:
        limit_s = self._now() - SILENT_INTERVALS * federation.interval_s
        for contact in self.contacts.values():
            contact.counts = contact.answered_s is not None and contact.answered_s >= limit_s
        others = [one.figures for one in self.contacts.values() if one.counts and one.figures]
        configured = {
            tenant_identity(tenant): float(tenant.weight)
            for tenant in self.configured.tenancy.tenants
        }
        found = local_weights(seen_from(self.own, others, configured), self.own.capacity)
        weights = {
            name: weight_in_keys(weight) for name, weight in found.items() if name in configured
        }
        changed = {**configured, **weights}
        if any(
            abs(weight - self.weights.get(name, configured[name])) > TOLERANCE * weight
            for name, weight in changed.items()
        ):
            self.weights = {
                name: weight for name, weight in changed.items() if weight != configured[name]
            }
            await self._reweighed()

    def in_force(self) -> RouterConfig:
        """The configuration with the weights of this cell."""
        if not self.weights:
            return self.configured
        tenancy = self.configured.tenancy
        tenants = tuple(
            replace(tenant, weight=self.weights.get(tenant_identity(tenant), tenant.weight))
            for tenant in tenancy.tenants
        )
        return replace(self.configured, tenancy=replace(tenancy, tenants=tenants))


def nothing_yet(config: RouterConfig) -> CellFigures:
    """The figures of a cell that has served nothing."""
    name = "" if config.federation is None else config.federation.cell
    return CellFigures(cell=name, capacity=0.0, tenants={})


def seen_from(
    own: CellFigures, others: list[CellFigures], weights: Mapping[str, float]
) -> dict[str, TenantInCell]:
    """The tenants with demand in a cell, beside what they have in the others."""
    elsewhere: defaultdict[str, float] = defaultdict(float)
    served: defaultdict[str, float] = defaultdict(float)
    demand: defaultdict[str, float] = defaultdict(float)
    for figures in others:
        is_full = figures.is_full
        for name, rates in figures.tenants.items():
            elsewhere[name] += rates.served
            if is_full:
                served[name] += rates.served
                demand[name] += rates.demand
    return {
        name: TenantInCell(
            weight=weights.get(name, 1.0),
            served=rates.served,
            demand=rates.demand,
            elsewhere=elsewhere[name],
            full=CellSums(served[name], demand[name]),
        )
        for name, rates in own.tenants.items()
    }
