"""What `/v1/state` and `/v1/replicas` answer, built in steps: requests are served between two steps (`slices.py`).

The numbers of one client, and of one replica, are of the same moment. Two clients may be some milliseconds apart.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator
from typing import TypeVar

import msgspec
from evenkeel_contract import adminstate
from evenkeel_contract.routerconfig import PrefixMode, TenantConfig
from evenkeel_fairshare.ledger import tenant_of
from evenkeel_fairshare.ledger.replica_account import (
    DEFICIT,
    RUNNING,
    SERVICE,
    TENANT_DEFICIT,
    WAITING,
    ReplicaAccount,
)
from evenkeel_fairshare.verdict import verdict

from evenkeel_router.api.identity import client_of, names_of, tenant_identity
from evenkeel_router.fleet.selection import Member
from evenkeel_router.ledger.fairness import NO_FIGURES
from evenkeel_router.ledger.totals import ClientTotals, Distributions
from evenkeel_router.telemetry.rooms import Rooms

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Serve requests between two of them."""


def router_state(rooms: Rooms, now_s: float) -> Steps[bytes]:
    """The answer of `/v1/state`, as JSON."""
    replicas = yield from replica_states(rooms, now_s)
    tenants = yield from _tenants(rooms)
    config = rooms.settings.config
    state = adminstate.RouterState(
        version=adminstate.STATE_VERSION,
        time_s=now_s,
        uptime_s=time.time() - rooms.intake.started_unix,
        namespace=config.namespace,
        service=config.service,
        model=config.model,
        fleet_policy=config.scheduling.fleet_policy.value,
        draining=rooms.intake.draining,
        in_flight=rooms.intake.admission.running,
        waiting=len(rooms.replicas.wait_queue),
        gate_waiting=len(rooms.gates),
        prefix_blocks=sum(map(rooms.replicas.fleet.blocks, rooms.replicas.fleet)),
        config_faults=rooms.settings.faults,
        prefix=_prefix(rooms),
        replicas=replicas,
        tenants=tenants,
        fleet=fleet_state(rooms),
        ledger=ledger_state(rooms),
        peers=peer_states(rooms, now_s),
    )
    return adminstate.encode_state(state)


def replicas_state(rooms: Rooms, now_s: float) -> Steps[bytes]:
    """The answer of `/v1/replicas`, as JSON."""
    replicas = yield from replica_states(rooms, now_s)
    state = adminstate.ReplicasState(
        version=adminstate.STATE_VERSION,
        replicas=replicas,
        store_error=rooms.service_ledger.store_error,
    )
    return adminstate.encode_state(state)


def replica_states(rooms: Rooms, now_s: float) -> Steps[tuple[adminstate.ReplicaState, ...]]:
    """All replicas, in steps."""
    found = []
    for member in list(rooms.replicas.fleet):
        if member.name in rooms.replicas.configured:  # it may leave between two steps
            found.append(_replica(rooms, member, now_s))
            yield
    return tuple(found)


def _replica(rooms: Rooms, member: Member, now_s: float) -> adminstate.ReplicaState:
    totals = rooms.replicas.totals[member.name]
    seen = rooms.replicas.reports.get(member.name)
    follower = rooms.prefixes.followers.get(member.name)
    account = rooms.service_ledger.account(member.name)
    gate = rooms.gates.gate(member.name)
    return adminstate.ReplicaState(
        name=member.name,
        url=rooms.replicas.configured[member.name].url,
        joined=member.joined,
        routable=member.routable,
        unschedulable_reason=member.unschedulable,
        in_flight=rooms.replicas.fleet.load(member),
        gate_waiting=0 if gate is None else len(gate),
        gate_limit=0 if gate is None else gate.limit,
        requests=totals.requests,
        failures=totals.failures,
        input_tokens=totals.input_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        prefix_blocks=rooms.replicas.fleet.blocks(member),
        incarnation=seen.incarnation if seen is not None else "",
        policy=seen.policy if seen is not None else "",
        quantum=seen.quantum if seen is not None else 0.0,
        waiting=_sum(account, WAITING),
        running=_sum(account, RUNNING),
        report_age_s=now_s - seen.received_s if seen is not None else None,
        inactive_reason=seen.inactive if seen is not None else "",
        kv_state=follower.sync_state.value if follower is not None else "",
        kv_reason=follower.reason if follower is not None else _why_not_followed(rooms, member),
        kv_sequence=follower.sequence if follower is not None else 0,
        kv_gaps=follower.counts.gaps if follower is not None else 0,
    )


def _why_not_followed(rooms: Rooms, member: Member) -> str:
    if rooms.settings.config.prefix.mode is not PrefixMode.TOKENS:
        return ""
    replica = rooms.replicas.configured[member.name]
    if None in (replica.kv_events, replica.kv_replay):
        return "it publishes no KV events"
    return "" if member.joined else "it is unreachable"


def _prefix(rooms: Rooms) -> adminstate.PrefixState:
    return adminstate.PrefixState(
        mode=rooms.settings.config.prefix.mode.value,
        tokenizer_error=rooms.prefixes.untokenised.error,
        untokenised={
            reason.value: count for reason, count in rooms.prefixes.untokenised.counts.items()
        },
        predictions={
            basis: adminstate.PredictionState(
                predicted_tokens=prediction.predicted_tokens,
                reported_tokens=prediction.reported_tokens,
                error_tokens=int(prediction.error_tokens.total),
            )
            for basis, prediction in rooms.totals.predictions.items()
        },
    )


def _sum(account: ReplicaAccount | None, column: int) -> int:
    return int(sum(account.clients.column(column))) if account is not None else 0


def _tenants(rooms: Rooms) -> Steps[tuple[adminstate.TenantState, ...]]:
    """Configured tenants in their order, then other tenants that this router or another one served."""
    served: defaultdict[str, dict[str, ClientTotals]] = defaultdict(dict)
    for totals in rooms.totals.clients():
        served[tenant_of(totals.identity)][totals.identity] = totals
    unused = Distributions("")
    for identity in rooms.service_ledger.fairness.now.clients:
        if identity not in served[tenant_of(identity)]:
            served[tenant_of(identity)][identity] = ClientTotals(identity, unused)
        yield
    tenants = []
    for tenant in rooms.settings.config.tenancy.tenants:
        mine = served.pop(tenant_identity(tenant), {})
        for client in tenant.clients:
            identity = client_of(tenant, client.name).identity
            mine.setdefault(identity, ClientTotals(identity, unused))
        tenants.append((yield from _tenant(rooms, tenant, list(mine.values()))))
    for clients in served.values():
        some = next(iter(clients.values()))
        tenant = TenantConfig(namespace=rooms.settings.config.namespace, name=some.tenant)
        tenants.append((yield from _tenant(rooms, tenant, list(clients.values()))))
    return tuple(tenants)


def _tenant(
    rooms: Rooms, tenant: TenantConfig, clients: list[ClientTotals]
) -> Steps[adminstate.TenantState]:
    weights = {client.name: client.weight for client in tenant.clients}
    # Encoded one at a time: with many replicas, to encode (and to free) all of them together takes too long.
    shown = []
    for totals in clients:
        weight = weights.get(totals.client, tenant.default_client_weight)
        shown.append(msgspec.Raw(msgspec.json.encode(_client(rooms, totals, weight))))
        yield
    figures = rooms.service_ledger.fairness.now.tenants.get(tenant_identity(tenant), NO_FIGURES)
    # Clients that sent this router a request share the tenant's distributions.
    distributions = next((one.distributions for one in clients if one.requests), Distributions(""))
    state = adminstate.TenantState(
        namespace=tenant.namespace,
        name=tenant.name,
        weight=tenant.weight,
        service=figures.service,
        owed=figures.owed,
        lead_s=figures.lead_s,
        qoe=distributions.qoe.total,
        qoe_streams=sum(distributions.qoe.counts),
    )
    return msgspec.structs.replace(state, clients=tuple(shown))


def _client(rooms: Rooms, totals: ClientTotals, weight: int) -> adminstate.ClientState:
    figures = rooms.service_ledger.fairness.now.clients.get(totals.identity, NO_FIGURES)
    return adminstate.ClientState(
        identity=totals.identity,
        name=totals.client,
        weight=weight,
        in_flight=totals.in_flight,
        requests=totals.requests,
        errors=sum(totals.errors.values()),
        retries=totals.retries,
        input_tokens=totals.input_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        service=figures.service,
        owed=figures.owed,
        requested_per_s=figures.requested_per_s,
        lead_s=figures.lead_s,
        backlogged=figures.backlogged,
        replicas=at_replicas(rooms, totals.identity),
    )


def fleet_state(rooms: Rooms) -> adminstate.FleetState:
    """Fairness of the whole fleet, with the verdict."""
    now = rooms.service_ledger.fairness.now
    waited = {"/".join(names_of(name)): part for name, part in now.given_over_owed.items()}
    figures = msgspec.convert(now, adminstate.FleetState, from_attributes=True)
    return msgspec.structs.replace(figures, verdict=verdict(waited))


def ledger_state(rooms: Rooms) -> adminstate.LedgerState:
    """This router's ledger and its store."""
    ledger = rooms.service_ledger.ledger
    return adminstate.LedgerState(
        router=ledger.router,
        closed_totals_version=ledger.closed_totals.rank.height,
        open_accounts=sum(1 for _ in ledger.open_accounts()),
        clients=rooms.service_ledger.fairness.known,
        store=rooms.settings.config.state.store.value,
        store_error=rooms.service_ledger.store_error,
        uncounted=tuple(rooms.uncounted()),
    )


def peer_states(rooms: Rooms, now_s: float) -> tuple[adminstate.PeerState, ...]:
    """The other routers."""
    return tuple(
        adminstate.PeerState(
            name=peer.name,
            url=peer.url,
            router=known.router,
            answer_age_s=None if known.answered_s is None else now_s - known.answered_s,
            error=known.error,
        )
        for peer, known in rooms.service_ledger.peer_contacts.items()
    )


def at_replicas(rooms: Rooms, identity: str) -> tuple[adminstate.ClientAtReplica, ...]:
    """One client at every replica that knows it."""
    credit = rooms.replicas.fleet.policy.credit(identity)
    tenant = tenant_of(identity)
    found = []
    for member in rooms.replicas.fleet:
        account = rooms.service_ledger.account(member.name)
        held = None if member.slot is None else credit.get(member.slot)
        if held is None and (account is None or identity not in account.clients):
            continue
        cell = account.clients.cell if account is not None else _nothing
        accounting = rooms.service_ledger.accounting
        itl_tokens, itl_s = accounting.latency(accounting.incarnation(member.name), identity)
        found.append(
            adminstate.ClientAtReplica(
                replica=member.name,
                credit=held or 0.0,
                deficit=cell(identity, DEFICIT),
                tenant_deficit=account.tenants.cell(tenant, TENANT_DEFICIT) if account else 0.0,
                service=cell(identity, SERVICE),
                waiting=int(cell(identity, WAITING)),
                running=int(cell(identity, RUNNING)),
                itl_tokens=itl_tokens,
                itl_s=itl_s,
            )
        )
    return tuple(found)


def _nothing(client: str, column: int) -> float:
    return 0.0
