"""The service ledger of one router, and the figures that it computes from it (DESIGN section 4, R3)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator
from math import ceil
from typing import Final

from evenkeel_contract.federationconfig import CellConfig
from evenkeel_contract.routerconfig import RouterConfig, SchedulingConfig
from evenkeel_fairshare.bounds import dlpm_overshoot
from evenkeel_fairshare.cost import Cost, LinearCost
from evenkeel_fairshare.ledger import CarryRules, Ledger
from evenkeel_fairshare.ledger.replica_account import ReplicaAccount
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS, LARGEST_QUANTUM

from evenkeel_router.ledger.accounting import Accounting
from evenkeel_router.ledger.contacts import CellContact, Peer, PeerContact
from evenkeel_router.ledger.fairness import Fairness
from evenkeel_router.ledger.persistence import Persistence
from evenkeel_router.ledger.totals import DemandMeter
from evenkeel_router.ledger.unreported import router_of
from evenkeel_router.ledger.weights import ConfiguredWeights
from evenkeel_router.settings import Settings

SILENCE_S: Final = 3.0
"""After it did not answer for so long, and for three exchanges, what a router published of its gates does not count."""
UNKNOWN_MAX_DEBT: Final = 1_000_000.0
"""U while neither the configuration nor a replica states it: twice what an 80 GB card makes possible."""


class ServiceLedger:
    """One router's ledger and all that keeps it: accounts, peers, the store, fairness figures."""

    def __init__(self, settings: Settings, *, incarnation: str | None = None) -> None:
        """`incarnation` names this process among all routers that ever were; by default a new name."""
        config = settings.config
        self._settings = settings
        self._sizes: set[tuple[int, int]] = set()
        """(longest prompt, KV pool) of the replicas that ever were."""
        self._quantum = 0.0
        """The largest Q^u that a replica reported, weighted tokens; 0 before the first report."""
        self.weights = ConfiguredWeights(config.tenancy)
        self.ledger = Ledger(
            incarnation or new_incarnation(),
            rules=carry_rules(config.scheduling),
            weights=self.weights,
        )
        self.accounting = Accounting(
            self.ledger, cost=cost_of(config.scheduling), return_s=settings.timing.return_s
        )
        self.accounting.queue = config.scheduling.queue
        self.fairness = Fairness(self.ledger)
        self.demand = DemandMeter()
        self.peers: tuple[Peer, ...] | None = None
        """The other routers of the service, where discovery finds them; None until it did."""
        self.peer_contacts: dict[Peer, PeerContact] = {}
        """The last contact with every other router."""
        self.cell_contacts: dict[CellConfig, CellContact] = {}
        """The last contact with every other cell of the service (R21)."""
        self.persistence: Persistence | None = None
        """What keeps the ledger in a store, if there is one."""

    @property
    def store_error(self) -> str:
        """Why the ledger's store does not answer; empty while it does."""
        return (self.persistence.error or "") if self.persistence is not None else ""

    def account(self, replica: str) -> ReplicaAccount | None:
        """The account of the process that answers at a replica."""
        return self.ledger.replica_accounts.get(self.accounting.incarnation(replica))

    def gates_of(self, replica: str, now_s: float) -> Iterator[tuple[str, str]]:
        """(router, incarnation) of each gate of a replica without reports, this router's first (R12).

        A router that does not answer has none: it frees its part.
        """
        own = self.accounting.unreported(replica)
        if own:
            yield self.ledger.router, own
        silent = self._silent_routers(now_s)
        for contact in self.peer_contacts.values():
            if contact.router not in (self.ledger.router, "", *silent):
                theirs = self.accounting.unreported_elsewhere(replica, contact.router)
                if theirs:
                    yield contact.router, theirs

    def current(self, now_s: float) -> Collection[str]:
        """Incarnations that are alive, without gates of routers that do not answer: their last figures are too old."""
        silent = self._silent_routers(now_s)
        alive = self.accounting.alive
        return [name for name in alive if router_of(name) not in silent] if silent else alive

    def _silent_routers(self, now_s: float) -> frozenset[str]:
        silence_s = max(SILENCE_S, 3 * self._settings.config.state.exchange_interval_s)
        return frozenset(
            contact.router
            for contact in self.peer_contacts.values()
            if contact.error or now_s - (contact.answered_s or contact.since_s) > silence_s
        )

    def replica_is_of_size(self, *, max_input_tokens: int, pool_tokens: int) -> None:
        """A replica reports its size. Of unequal replicas the largest counts, also after it is gone."""
        self._sizes.add((max_input_tokens, pool_tokens))
        self._update_rules()

    def replica_has_quantum(self, quantum: float) -> None:
        """A replica reports Q^u in force; 0: it cannot report one. The bounds hold with the largest one, up to `LARGEST_QUANTUM`."""
        claim = min(
            quantum or LARGEST_QUANTUM, LARGEST_QUANTUM
        )  # one report sets the credit of every client (R18)
        if claim > self._quantum:
            self._quantum = claim
            self._update_rules()

    def apply(self, config: RouterConfig, before: RouterConfig) -> None:
        """Use a changed configuration, except for the weights; what was counted stays."""
        if config.scheduling != before.scheduling:
            self.accounting.cost = cost_of(config.scheduling)
            self.accounting.queue = config.scheduling.queue
            self._update_rules()

    def _update_rules(self) -> None:
        scheduling = self._settings.config.scheduling
        self.ledger.rules = carry_rules(scheduling, self._sizes, self._quantum)


def new_incarnation() -> str:
    """A name for a router process. Names sort by start time, so that a new router takes over from no other."""
    return f"{time.time_ns() // 1_000_000:013x}-{secrets.token_hex(4)}"


def cost_of(scheduling: SchedulingConfig) -> Cost:
    """h = we·extend + wq·output, and KV held over time where it has a price."""
    return LinearCost(
        float(scheduling.input_token_weight),
        float(scheduling.output_token_weight),
        float(scheduling.kv_time),
    )


def carry_rules(
    scheduling: SchedulingConfig, sizes: Collection[tuple[int, int]] = (), measured: float = 0.0
) -> CarryRules:
    """The range of the replicas' deficits: U (`dlpm_overshoot`) of the largest of them.

    `measured`: under `clientQuantum: Auto` the largest Q^u that a replica reported; 0 before the first report.
    """
    overshoots = (
        dlpm_overshoot(
            max_input_tokens=longest,
            memory_tokens=pool,
            input_weight=scheduling.input_token_weight,
            output_weight=scheduling.output_token_weight,
            kv_time=scheduling.kv_time,
        )
        for longest, pool in sizes
    )
    overshoot = scheduling.max_debt or max(overshoots, default=UNKNOWN_MAX_DEBT)
    return CarryRules(
        quantum=float(scheduling.client_quantum or ceil(measured) or LARGEST_QUANTUM),
        overshoot=float(overshoot),
        deferred_refills=DEFERRED_REFILLS,
    )
