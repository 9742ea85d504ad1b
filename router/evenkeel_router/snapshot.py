"""The router's memory as `/v1/state` shows it.

Place in the flow: account, fleet, reports → **snapshot** → `evenkeel top`. Taken when somebody asks, in one
go, so that its numbers belong together.
"""

from __future__ import annotations

import time
from collections import defaultdict

from evenkeel_contract import adminstate
from evenkeel_contract.reports import ClientReport
from evenkeel_contract.routerconfig import TenantConfig

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
    clients = seen.clients.values() if seen is not None else ()
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
        waiting=sum(client.waiting for client in clients),
        running=sum(client.running for client in clients),
        report_age_s=now_s - seen.received_s if seen is not None else None,
    )


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
    found = []
    for member in state.fleet:
        seen = state.reports.get(member.name)
        report = seen.clients.get(identity) if seen is not None else None
        held = None if member.slot is None else credit.get(member.slot)
        if held is not None or report is not None:
            found.append(_at_replica(member, held or 0.0, report))
    return tuple(found)


def _at_replica(
    member: Member, credit: float, report: ClientReport | None
) -> adminstate.ClientAtReplica:
    if report is None:
        return adminstate.ClientAtReplica(replica=member.name, credit=credit)
    return adminstate.ClientAtReplica(
        replica=member.name,
        credit=credit,
        deficit=report.deficit,
        tenant_deficit=report.tenant_deficit,
        service=report.service,
        waiting=report.waiting,
        running=report.running,
    )
