"""The routers' ledgers, pulled as a peer pulls them, and the checks of their content.

A `Reader` keeps one copy per router process, merged from deltas, with all replica accounts. So it still has the
account of an incarnation after routers have compacted it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import httpx
from evenkeel_contract.ledgerwire import LEDGER_PATH, decode_delta, encode, unframe
from evenkeel_fairshare.ledger import CarryRules, Ledger
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS

from chaos.rig.arena import OVERSHOOT, QUANTUM, TOKEN, Arena, Router
from chaos.rig.children import PATIENCE_S
from chaos.rig.witness import Testimony

RULES: Final = CarryRules(
    quantum=float(QUANTUM), overshoot=OVERSHOOT, deferred_refills=DEFERRED_REFILLS
)

PULL_INTERVAL_S: Final = 0.5
ROUNDING: Final = 1e-6
ESTIMATE_ERROR: Final = 0.005
"""Tolerance for requests without usage: the input of a broken or cancelled request is estimated by its prompt's
length."""
SETTLE_S: Final = PATIENCE_S


@dataclass(slots=True)
class Copy:
    """A router process and its ledger, as far as pulled."""

    pid: int
    ledger: Ledger


class Reader:
    """Copies of all routers' ledgers."""

    def __init__(self, fleet: Arena, client: httpx.AsyncClient) -> None:
        self._fleet = fleet
        self._client = client
        self.uncomputed: Callable[[str], float] = lambda client: 0.0
        """Largest charge without computed tokens: input of cancelled requests."""
        self.copies: dict[str, Copy] = {}
        """By router, of its process that runs now or ran last."""

    async def pull(self, name: str) -> bool:
        """Update one copy; returns whether its router answered."""
        router = self._fleet.routers[name]
        if not router.alive:
            return False
        copy = self.copies.get(name)
        if copy is None or copy.pid != router.pid:
            copy = self.copies[name] = Copy(router.pid, Ledger("reader", rules=RULES))
        return await self._ask(router, copy.ledger)

    async def _ask(self, router: Router, ledger: Ledger) -> bool:
        try:
            answer = await self._client.post(
                router.admin_url + LEDGER_PATH,
                content=encode(ledger.digest()),
                headers={"Authorization": f"Bearer {TOKEN}"},
            )
        except httpx.HTTPError:
            return False
        assert answer.status_code == 200, answer.text
        for message in unframe(answer.content):
            ledger.merge(decode_delta(message))
        return True

    async def follow(self) -> None:
        """Pull from all routers until cancelled, so that every account is read before it is compacted."""
        while True:
            for name in list(self._fleet.routers):
                await self.pull(name)
            await asyncio.sleep(PULL_INTERVAL_S)

    async def settled(self) -> None:
        """Wait until every router's ledger is correct; fails with the differences after a time limit.

        The load must have ended. Replicas report to routers once a second, and routers exchange ledgers.
        """
        faults = ["nothing was pulled yet"]
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while faults:
                    pulled = [await self.pull(name) for name in self._fleet.routers]
                    faults = self.faults() if all(pulled) else ["a router does not answer"]
                    await asyncio.sleep(PULL_INTERVAL_S)
        assert not faults, "\n".join(faults[:12])

    def faults(self) -> list[str]:
        """Differences between the pulled ledgers and the charges that replicas recorded."""
        truth, living = self._fleet.truth(), self._fleet.living()
        faults = []
        for name in self._fleet.routers:
            ledger = self.copies[name].ledger
            for incarnation, said in truth.items():
                for client, true in said.service.items():
                    fault = _fault(ledger, incarnation, client, true, lives=incarnation in living)
                    if fault:
                        faults.append(f"{name}: {client} at {incarnation[:8]}: {fault}")
            faults += [f"{name}: {fault}" for fault in self._sum_faults(ledger, truth.values())]
        return faults + self._disagreements()

    async def pages_of(self, router: str) -> int:
        """Incarnations whose accounts are open at a router."""
        empty = Ledger("newcomer", rules=RULES)
        assert await self._ask(self._fleet.routers[router], empty)
        return len(empty.replica_accounts)

    def served(self, router: str) -> dict[str, float]:
        """S_i by client, as one router has it."""
        ledger = self.copies[router].ledger
        return {client: ledger.served(client) for client in ledger.clients()}

    def _sum_faults(self, ledger: Ledger, truth: Collection[Testimony]) -> list[str]:
        """Closed totals contain each account exactly once, and no client paid for more tokens than were computed."""
        faults = []
        for client in ledger.clients():
            pages = sum(page.served(client) for page in ledger.replica_accounts.values())
            served = ledger.served(client)
            computed = sum(said.computed.get(client, 0.0) for said in truth)
            if abs(pages - served) > ROUNDING:
                faults.append(f"{client}: {served} in sum, {pages} on all pages")
            most = computed * (1 + ESTIMATE_ERROR) + self.uncomputed(client) + ROUNDING
            if served > most:
                faults.append(f"{client}: {served} in sum, {computed} computed")
        return faults

    def _disagreements(self) -> list[str]:
        (first, *others) = self._fleet.routers
        said = self.served(first)
        return [
            f"{first} and {other} say different things of {client}"
            for other in others
            for client, service in self.served(other).items()
            if abs(service - said.get(client, 0.0)) > ROUNDING
        ]


def _fault(ledger: Ledger, incarnation: str, client: str, true: float, *, lives: bool) -> str:
    page = ledger.replica_accounts.get(incarnation)
    if page is None:
        return "no page" if true and incarnation not in ledger.closed_totals.folded else ""
    found = page.served(client)
    if lives and found < true - ROUNDING:
        return f"{found} counted, {true} served: a report is missing"
    if true > found + OVERSHOOT + ROUNDING:
        return f"{true} served, {found} counted: more is lost than one memory holds"
    return ""


@asynccontextmanager
async def open_reader(fleet: Arena) -> AsyncIterator[Reader]:
    """A reader that follows all routers."""
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        reader = Reader(fleet, client)
        following = asyncio.create_task(reader.follow())
        try:
            yield reader
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
