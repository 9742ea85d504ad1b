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
from collections.abc import Awaitable, Callable, Generator, Mapping
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
from evenkeel_fairshare.cells import (
    FLOOR,
    STEP_TENANTS,
    CellSums,
    TenantInCell,
    demand_of,
    weighing,
)

from evenkeel_router.ledger.contacts import CellContact
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.ledger.tenant_rates import TenantMeter, changed_weights
from evenkeel_router.slices import in_slices

_log = logging.getLogger(__name__)
ANSWER_S: Final = 10.0
"""Longest wait for a cell."""
UNJOINED_S: Final = 1.0
"""Time between two looks whether the service has got other cells."""
SILENT_INTERVALS: Final = 3


class Federation:
    """One router's view of all cells."""

    def __init__(
        self,
        config: RouterConfig,
        service_ledger: ServiceLedger,
        session: aiohttp.ClientSession,
        *,
        reweigh: Callable[[Mapping[str, float]], Awaitable[None]],
    ) -> None:
        """`reweigh` is called with changed weights."""
        self._federation = config.federation
        self._service_ledger = service_ledger
        self._session = session
        self._reweigh = reweigh
        self._now = asyncio.get_running_loop().time
        self._meter = TenantMeter()
        self.own = nothing_yet(config.federation)
        """The figures of this cell for the others; none before its first interval has passed."""
        self._trust: tuple[str | None, ssl.SSLContext | bool] = None, True
        """The configured certificates, and whom connections trust by them."""
        self.weights: Mapping[str, float] = {}
        """Tenant → its weight in this cell, where it is not the configured one."""

    def take(self, config: RouterConfig) -> bool:
        """Take a new configuration; returns whether the weights of the cell end with it."""
        if config.federation == self._federation:
            return False
        self._federation = config.federation
        self.weights, self.own, self._meter = {}, nothing_yet(config.federation), TenantMeter()
        self._service_ledger.cell_contacts = {}
        return True

    @property
    def contacts(self) -> dict[CellConfig, CellContact]:
        """The last contact with every other cell."""
        return self._service_ledger.cell_contacts

    @property
    def expected(self) -> str | None:
        """The token of other cells; None if there are none."""
        return None if self._federation is None else self._federation.token

    def admits(self, token: str) -> bool:
        """Whether a question of another cell has the right token."""
        return hmac.compare_digest(token.encode(errors="replace"), (self.expected or "").encode())

    async def run(self) -> None:
        """Exchange figures and renew the weights, until cancelled."""
        while True:
            federation = self._federation
            if federation is None:
                await asyncio.sleep(UNJOINED_S)
                continue
            own, _ = await in_slices(self._measured(federation))
            if own is not None and federation is self._federation:
                self.own = own
            await self._ask_all(federation)
            if federation is self._federation:
                await self._weigh(federation)
            await asyncio.sleep(federation.interval_s)

    def _measured(self, federation: FederationConfig) -> Generator[None, None, CellFigures | None]:
        """The figures of this cell since the last look, in steps; None at the first one."""
        tenants = self._service_ledger.fairness.now.tenants
        rates = self._meter.rates(tenants, self._now())
        if rates is None:
            return None
        capacity = sum(rates.values())
        yield
        found = {}
        for n, (name, rate) in enumerate(rates.items()):
            waiting = tenants[name].waiting
            asked = demand_of(rate, waiting, capacity=capacity, interval_s=federation.interval_s)
            if asked > 0:
                found[name] = TenantRates(rate, asked)
            if n % STEP_TENANTS == 0:
                yield
        return CellFigures(cell=federation.cell, capacity=capacity, tenants=found)

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
        weights, _ = await in_slices(self._changed(others))
        if weights is not None and federation is self._federation:
            self.weights = weights
            await self._reweigh(weights)

    def _changed(
        self, others: list[CellFigures]
    ) -> Generator[None, None, Mapping[str, float] | None]:
        """The new weights, in steps; None if they stay. Tenants that no resource declares have some too."""
        configured = self._service_ledger.weights.configured
        seen = yield from seen_from(self.own, others, configured)
        full = 1
        for one in others:
            full += one.is_full
            yield
        found = yield from weighing(seen, self.own.capacity, floor=FLOOR / full)
        return (yield from changed_weights(found, self.weights, configured))


def nothing_yet(federation: FederationConfig | None) -> CellFigures:
    """The figures of a cell that has served nothing."""
    name = "" if federation is None else federation.cell
    return CellFigures(cell=name, capacity=0.0, tenants={})


def seen_from(
    own: CellFigures, others: list[CellFigures], weight: Callable[[str], float]
) -> Generator[None, None, dict[str, TenantInCell]]:
    """The tenants with demand in a cell, beside what they have in the others; in steps. `weight` returns a tenant's global weight."""
    elsewhere: defaultdict[str, float] = defaultdict(float)
    served: defaultdict[str, float] = defaultdict(float)
    demand: defaultdict[str, float] = defaultdict(float)
    for figures in others:
        is_full = figures.is_full
        for n, (name, rates) in enumerate(figures.tenants.items()):
            elsewhere[name] += rates.served
            if is_full:
                served[name] += rates.served
                demand[name] += rates.demand
            if n % STEP_TENANTS == 0:
                yield
    found = {}
    for n, (name, rates) in enumerate(own.tenants.items()):
        found[name] = TenantInCell(
            weight=weight(name),
            served=rates.served,
            demand=rates.demand,
            elsewhere=elsewhere[name],
            full=CellSums(served[name], demand[name]),
        )
        if n % STEP_TENANTS == 0:
            yield
    return found
