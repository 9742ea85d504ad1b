"""The router's memory as `/v1/state` shows it.

Place in the flow: account, fleet, reports → **snapshot** → `evenkeel top`. Taken when somebody asks, in one
go, so that its numbers belong together.
"""

from __future__ import annotations

import time
from collections import defaultdict

from evenkeel_contract import adminstate
from evenkeel_contract.routerconfig import TenantConfig
from evenkeel_fairshare.ledger import tenant_of
from evenkeel_fairshare.ledger.page import (
    DEFICIT,
    RUNNING,
    SERVICE,
    TENANT_DEFICIT,
    WAITING,
    Page,
)

from evenkeel_router.core.accounting import OTHER, ClientTotals
from evenkeel_router.core.candidates import Member
from evenkeel_router.core.identity import tenant_identity
from evenkeel_router.state import RouterState


def take(state: RouterState, now_s: float) -> adminstate.RouterState:
    """Everything, now."""
    config = state.config
    return adminstate.RouterState(
        version=adminstate.STATE_VERSION,
        time_s=now_s,
        uptime_s=time.time() - state.started_unix,
        namespace=config.namespace,
        service=config.service,
        model=config.model,
        fleet_policy=config.scheduling.fleet_policy.value,
        draining=state.draining,
        in_flight=state.admission.running,
        held=len(state.room),
        prefix_blocks=sum(map(state.fleet.blocks, state.fleet)),
        config_faults=state.config_faults,
        replicas=tuple(_replica(state, member, now_s) for member in state.fleet),
        tenants=_tenants(state),
    )


def _replica(state: RouterState, member: Member, now_s: float) -> adminstate.ReplicaState:
    totals = state.accounts.replica(member.name)
    seen = state.reports.get(member.name)
    page = _page(state, member)
    return adminstate.ReplicaState(
        name=member.name,
        url=state.replicas[member.name].url,
        joined=member.joined,
        routable=member.routable,
        withheld=member.withheld,
        in_flight=state.fleet.load(member),
        requests=totals.requests,
        failures=totals.failures,
        input_tokens=totals.input_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        prefix_blocks=state.fleet.blocks(member),
        incarnation=seen.incarnation if seen is not None else "",
        policy=seen.policy if seen is not None else "",
        waiting=_sum(page, WAITING),
        running=_sum(page, RUNNING),
        report_age_s=now_s - seen.received_s if seen is not None else None,
    )


def _sum(page: Page | None, column: int) -> int:
    return int(sum(page.clients.column(column))) if page is not None else 0


def _tenants(state: RouterState) -> tuple[adminstate.TenantState, ...]:
    """Configured tenants first, in their order; then whoever else was served."""
    served: defaultdict[str, list[ClientTotals]] = defaultdict(list)
    for totals in state.accounts.clients():
        served[totals.tenant_identity].append(totals)
    tenants = []
    for tenant in state.config.tenancy.tenants:
        declared = state.directory.declared(tenant)
        mine = served.pop(tenant_identity(tenant), [])
        totals_of = {totals.client: totals for totals in mine}
        for client in declared:
            totals_of.setdefault(client.name, ClientTotals.of(client))
        tenants.append(_tenant(state, tenant, list(totals_of.values())))
    for clients in served.values():
        tenant = TenantConfig(namespace=state.config.namespace, name=clients[0].tenant)
        tenants.append(_tenant(state, tenant, clients))
    return tuple(tenants)


def _tenant(
    state: RouterState, tenant: TenantConfig, clients: list[ClientTotals]
) -> adminstate.TenantState:
    weights = {client.name: client.weight for client in tenant.clients}
    return adminstate.TenantState(
        namespace=tenant.namespace,
        name=tenant.name,
        weight=tenant.weight,
        service=sum(totals.service for totals in clients),
        clients=tuple(
            _client(state, totals, weights.get(totals.client, tenant.default_client_weight))
            for totals in clients
        ),
    )


def _client(state: RouterState, totals: ClientTotals, weight: int) -> adminstate.ClientState:
    return adminstate.ClientState(
        identity=totals.identity,
        name=totals.client,
        weight=weight,
        in_flight=totals.in_flight,
        requests=totals.requests,
        errors=sum(totals.errors.values()),
        retries=totals.retries,
        input_tokens=int(totals.input_tokens.total),
        cached_tokens=int(totals.cached_tokens.total),
        output_tokens=int(totals.output_tokens.total),
        service=totals.service,
        replicas=_at_replicas(state, totals.identity) if totals.identity != OTHER else (),
    )


def _at_replicas(state: RouterState, identity: str) -> tuple[adminstate.ClientAtReplica, ...]:
    credit = state.fleet.policy.credit(identity)
    tenant = tenant_of(identity)
    found = []
    for member in state.fleet:
        page = _page(state, member)
        held = None if member.slot is None else credit.get(member.slot)
        if held is None and (page is None or identity not in page.clients):
            continue
        cell = page.clients.cell if page is not None else _nothing
        found.append(
            adminstate.ClientAtReplica(
                replica=member.name,
                credit=held or 0.0,
                deficit=cell(identity, DEFICIT),
                tenant_deficit=page.tenants.cell(tenant, TENANT_DEFICIT) if page else 0.0,
                service=cell(identity, SERVICE),
                waiting=int(cell(identity, WAITING)),
                running=int(cell(identity, RUNNING)),
            )
        )
    return tuple(found)


def _page(state: RouterState, member: Member) -> Page | None:
    """What the ledger knows of the process that answers at a replica."""
    return state.ledger.pages.get(state.books.incarnation(member.name))


def _nothing(client: str, column: int) -> float:
    return 0.0
