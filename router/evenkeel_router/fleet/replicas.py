"""The replicas as this router sees them, and the requests that wait for one of them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec
from evenkeel_contract.routerconfig import (
    PrefixConfig,
    PrefixMode,
    ReplicaConfig,
    RouterConfig,
    SchedulingConfig,
)
from evenkeel_fairshare.fleet.contract import FleetPolicy
from evenkeel_fairshare.fleet.registry import FleetPolicyConfig, make_policy
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import PrefixIndex

from evenkeel_router.fleet.discovered import DiscoveredReplica
from evenkeel_router.fleet.selection import Fleet
from evenkeel_router.fleet.unnamed import UnnamedShare
from evenkeel_router.fleet.wait_queue import Activation, WaitQueue
from evenkeel_router.ledger.service_ledger import ServiceLedger, cost_of
from evenkeel_router.ledger.totals import ReplicaTotals
from evenkeel_router.settings import Settings


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of one replica about itself; what it reports of clients is in the ledger."""

    incarnation: str
    policy: str
    sequence: int
    received_s: float
    counted: bool
    """Whether the ledger takes the report; not if the incarnation was closed before."""
    quantum: float = 0.0
    """Q^u in force, in weighted tokens; 0 if it reports none."""
    inactive: str = ""
    """Why the engine's plug-in does not order the queue; empty: it does."""


class Replicas:
    """The fleet of one router."""

    def __init__(self, settings: Settings) -> None:
        config = settings.config
        self.configured: dict[str, ReplicaConfig] = {}
        """The replicas that discovery found, by name."""
        self.fleet = Fleet(
            policy_of(config.scheduling),
            index_of(config.prefix),
            block_bytes=config.prefix.text_block_bytes,
            adapters_per_batch=config.adapters_per_batch,
        )
        self.wait_queue = WaitQueue()
        self.activation = Activation(
            self.fleet, self.wait_queue, lambda: settings.config, now=time.monotonic
        )
        self.reports: dict[str, ReplicaReport] = {}
        """Name of a replica → its last report."""
        self.unnamed: defaultdict[str, UnnamedShare] = defaultdict(UnnamedShare)
        """Name of a replica → the share of its requests without a client key."""
        self.in_sync = False
        """Whether discovery has reported all replicas at least once."""
        self.totals: defaultdict[str, ReplicaTotals] = defaultdict(ReplicaTotals)
        """Name of a replica → its totals."""

    def all_reported(self) -> bool:
        """Whether every listed replica that makes reports has sent one."""
        reporting = {name for name, replica in self.configured.items() if replica.reports}
        return reporting <= self.reports.keys()

    def remove(self, name: str) -> None:
        """A replica is no longer configured: its metrics end."""
        del self.configured[name]
        self.totals.pop(name, None)
        self.unnamed.pop(name, None)

    def take_speeds(self, service_ledger: ServiceLedger) -> None:
        """Give the fleet policy the speeds of the replicas that the ledger's reports show (R2)."""
        speeds = {}
        for member in self.fleet:
            incarnation = service_ledger.accounting.incarnation(member.name)
            speed = service_ledger.fairness.speed(incarnation)
            if speed is not None:
                speeds[member.name] = speed
        self.fleet.measured(speeds)

    def apply(self, config: RouterConfig, before: RouterConfig) -> None:
        """Use a changed configuration. A changed policy starts from zero, which R8 allows."""
        if config.scheduling != before.scheduling:
            self.fleet.replace_policy(policy_of(config.scheduling))
        if config.prefix != before.prefix:
            self.fleet.replace_index(
                index_of(config.prefix), block_bytes=config.prefix.text_block_bytes
            )
        self.fleet.adapters.limit = config.adapters_per_batch
        self.activation.look()


def policy_of(scheduling: SchedulingConfig) -> FleetPolicy:
    """The configured fleet policy, from zero."""
    config = FleetPolicyConfig(cost=cost_of(scheduling), worker_quantum=scheduling.worker_quantum)
    return make_policy(scheduling.fleet_policy.value, config)


def index_of(prefix: PrefixConfig) -> PrefixIndex | ExactIndex:
    """An empty index for the configured mode."""
    kind = ExactIndex if prefix.mode is PrefixMode.TOKENS else PrefixIndex
    return kind(max_blocks=prefix.max_blocks)


class Discovery(Protocol):
    """Where replicas come from."""

    async def run(self) -> None:
        """Keep in touch with the source of the replicas, until cancelled."""

    def update(self, config: RouterConfig) -> None:
        """The configuration changed."""

    def watch(self) -> AsyncIterator[Sequence[DiscoveredReplica]]:
        """All replicas: as soon as they are known, and again after every change."""


class StaticDiscovery:
    """The list of the configuration, for `evenkeel up` and tests."""

    def __init__(self, config: RouterConfig) -> None:
        self._replicas = config.replicas
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Nothing to keep in touch with."""

    def update(self, config: RouterConfig) -> None:
        self._replicas = config.replicas
        self._changed.set()

    async def watch(self) -> AsyncIterator[Sequence[DiscoveredReplica]]:
        while True:
            self._changed.clear()
            yield [DiscoveredReplica(replica) for replica in self._replicas]
            await self._changed.wait()
