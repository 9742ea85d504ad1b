"""The objects of one router: made once, by `app`; each part of the router gets those that it needs.

Only telemetry, which reads all of them, takes them together.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from evenkeel_contract.pools import offered_names
from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.api.tenant_change import TenantChange, changes
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.gate.gates import Gates
from evenkeel_router.gate.lending import Lending
from evenkeel_router.ledger.limit_parts import LimitParts
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.ledger.totals import RequestTotals, ttft_histogram
from evenkeel_router.ledger.weights import LocalWeights
from evenkeel_router.prefix.kv_follower import Prefixes
from evenkeel_router.request.connection_holders import shares_of
from evenkeel_router.request.intake import Intake
from evenkeel_router.settings import Settings, Timing
from evenkeel_router.telemetry.silences import Silences
from evenkeel_router.transport.connection_shares import ConnectionShares


@dataclass(slots=True)
class Rooms:
    """One router's memory."""

    settings: Settings
    service_ledger: ServiceLedger
    replicas: Replicas
    gates: Gates
    lending: Lending
    prefixes: Prefixes
    totals: RequestTotals
    intake: Intake
    connections: ConnectionShares
    """The connections of the traffic port."""
    silences: Silences
    """When replicas gave no token while requests waited."""
    shared: Rooms | None = None
    """What one of several services shares with the others; None: the router has one service, or this is what is shared."""

    @classmethod
    def make(
        cls,
        config: RouterConfig,
        *,
        timing: Timing | None = None,
        incarnation: str | None = None,
        shared: Rooms | None = None,
    ) -> Self:
        """`incarnation` names this process among all routers that ever were; by default a new name. `shared`: see the field."""
        settings = Settings(config, timing)
        service_ledger = ServiceLedger(settings, incarnation=incarnation)
        totals = RequestTotals(service_ledger.accounting.cost)
        totals.within_share_ttft_s = ttft_histogram(config.ttft_threshold_s)
        if shared is None:
            intake = Intake(config, LimitParts(service_ledger.ledger.router))
            connections = shares_of(settings)
        else:
            intake, connections = shared.intake.of_pool(config), shared.connections
        replicas = Replicas(settings)
        gates = Gates(settings, replicas, service_ledger)
        return cls(
            settings,
            service_ledger,
            replicas,
            gates,
            Lending(gates, service_ledger.ledger.router),
            Prefixes(),
            totals,
            intake,
            connections,
            Silences(replicas, service_ledger, intake),
            shared,
        )

    def of_pool(self, config: RouterConfig) -> Rooms:
        """The memory of one of several services of this router. Its ledger has this router's name: ledgers of two services never meet."""
        return Rooms.make(
            config,
            timing=self.settings.timing,
            incarnation=self.service_ledger.ledger.router,
            shared=self,
        )

    @property
    def of_process(self) -> Rooms:
        """What belongs to the whole process: this, or what this service shares with the others."""
        return self.shared or self

    @property
    def names(self) -> tuple[str, ...]:
        """What clients send as `model`, the usual name first."""
        config = self.settings.config
        for pool in self.of_process.settings.config.pools:
            if pool.service == config.service:
                return offered_names(pool)
        return (config.model, *config.model_aliases)

    @property
    def has_process(self) -> bool:
        """Whether the figures of the whole process belong here."""
        return self.shared is None

    @property
    def has_service(self) -> bool:
        """Whether a service belongs here."""
        return not self.settings.config.pools

    def apply(self, config: RouterConfig) -> Generator[None, None, None]:
        """Use a changed configuration, in steps. It touches no request in flight; discovery applies the replicas.

        The directory and the weights of many tenants take many steps, and come into force together, as a whole.
        """
        before = self.settings.config
        change = yield from changes(before.tenancy.tenants, config.tenancy.tenants)
        if self.shared is None:
            directory = yield from self.intake.directories(config, before, change)
        weights = yield from self.service_ledger.weights.changed(change, config.tenancy)
        if self.settings.config is not before:  # another change was faster
            yield from self.apply(config)
            return
        # From here on in one step.
        self.settings.config = config
        if self.shared is None:
            self.intake.use(directory)
            self.intake.apply(config)
            self.intake.audit.configured(
                replace(before.tenancy, tenants=tuple(change.before)),
                replace(config.tenancy, tenants=tuple(change.after)),
            )
        else:
            self.intake.follow(self.shared.intake, config)
        undeclared = config.tenancy.undeclared_tenant_weight
        if change != TenantChange() or undeclared != before.tenancy.undeclared_tenant_weight:
            self.service_ledger.weights = self.service_ledger.ledger.weights = weights
        self.service_ledger.apply(config, before)
        self.totals.cost = self.service_ledger.accounting.cost
        if config.ttft_threshold_s != before.ttft_threshold_s:
            self.totals.within_share_ttft_s = ttft_histogram(config.ttft_threshold_s)
        self.replicas.apply(config, before)
        self.gates.apply(config, before)

    def reweigh(self, local_weights: Mapping[str, float]) -> None:
        """Give tenants other weights than the configured ones: in this cell (R21), or in one of several services (R22)."""
        self.intake.reweigh(local_weights)
        ledger = self.service_ledger
        ledger.weights = ledger.ledger.weights = LocalWeights(ledger.weights, local_weights)

    def uncounted(self) -> Iterator[str]:
        """Replicas that take requests and whose service is in no ledger."""
        for member in self.replicas.fleet:
            if member.joined and not self.service_ledger.accounting.incarnation(member.name):
                yield member.name
