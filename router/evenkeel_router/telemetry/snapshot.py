"""What `/v1/state` and `/v1/replicas` answer, built in steps: requests are served between two steps (`slices.py`).

The numbers of one client, and of one replica, are of the same moment. Two clients may be some milliseconds apart.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from evenkeel_contract import adminstate
from evenkeel_contract.adminstate import NOTHING_HERE, Here, fields_of
from evenkeel_contract.routerconfig import PrefixMode, TenantConfig
from evenkeel_fairshare.ledger import tenant_of
from evenkeel_fairshare.ledger.replica_rows import (
    DEFICIT,
    RUNNING,
    SERVICE,
    TENANT_DEFICIT,
    WAITING,
)
from evenkeel_fairshare.verdict import Judgement
from evenkeel_fairshare.window import WindowShares

from evenkeel_router.api.identity import names_of, tenant_identity
from evenkeel_router.fleet.member import Member
from evenkeel_router.ledger.clients import ClientFigures, client_figures
from evenkeel_router.ledger.fairness import NO_FIGURES
from evenkeel_router.telemetry.rooms import Rooms

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Serve requests between two of them."""


class Seen(NamedTuple):
    """What this router saw of its requests."""

    verdict: Judgement
    here: Here = NOTHING_HERE
    clients: Mapping[str, Here] = {}
    replicas: Mapping[str, Here] = {}


def router_state(
    rooms: Rooms, now_s: float, seen: Seen, *, services: Sequence[tuple[Rooms, Seen]] = ()
) -> Steps[bytes]:
    """The answer of `/v1/state`, as JSON. `services`: those of a router of several."""
    state = yield from _router_state(rooms, now_s, seen)
    each = []
    for one, own in services:
        each.append((yield from _router_state(one, now_s, own)))
    return adminstate.encode_state(msgspec.structs.replace(state, services=tuple(each)))


def _router_state(rooms: Rooms, now_s: float, seen: Seen) -> Steps[adminstate.RouterState]:
    replicas = yield from replica_states(rooms, now_s, seen.replicas)
    tenants = (yield from _tenants(rooms, seen.clients)) if rooms.has_service else ()
    config = rooms.settings.config
    return adminstate.RouterState(
        version=adminstate.STATE_VERSION,
        time_s=now_s,
        uptime_s=time.time() - rooms.intake.started_unix,
        namespace=config.namespace,
        service=config.service,
        model=config.model,
        names=rooms.names,
        fleet_policy=config.scheduling.fleet_policy.value,
        draining=rooms.of_process.intake.draining,
        in_flight=rooms.intake.admission.running,
        waiting=len(rooms.replicas.wait_queue),
        here=seen.here,
        gate_waiting=rooms.gates.waiting,
        prefix_blocks=sum(map(rooms.replicas.fleet.blocks, rooms.replicas.fleet)),
        config_faults=rooms.of_process.settings.faults,
        prefix=_prefix(rooms),
        replicas=replicas,
        tenants=tenants,
        fleet=fleet_state(rooms, seen.verdict),
        ledger=ledger_state(rooms),
        peers=peer_states(rooms, now_s),
    )


def replicas_state(rooms: Rooms, now_s: float) -> Steps[bytes]:
    """The answer of `/v1/replicas`, as JSON."""
    replicas = yield from replica_states(rooms, now_s)
    state = adminstate.ReplicasState(
        version=adminstate.STATE_VERSION,
        replicas=replicas,
        store_error=rooms.service_ledger.store_error,
    )
    return adminstate.encode_state(state)


def replica_states(
    rooms: Rooms, now_s: float, here: Mapping[str, Here] | None = None
) -> Steps[tuple[adminstate.ReplicaState, ...]]:
    """All replicas, in steps. `here`: replica → requests of this router there, where they were counted."""
    found = []
    for member in list(rooms.replicas.fleet):
        if member.name in rooms.replicas.configured:  # it may leave between two steps
            own = Here() if here is None else here.get(member.name, NOTHING_HERE)
            found.append(_replica(rooms, member, now_s, own))
            yield
    return tuple(found)


def _replica(rooms: Rooms, member: Member, now_s: float, here: Here) -> adminstate.ReplicaState:
    totals = rooms.replicas.totals[member.name]
    seen = rooms.replicas.reports.get(member.name)
    follower = rooms.prefixes.followers.get(member.name)
    # What a process that is gone reported last is over.
    account = rooms.service_ledger.account(member.name) if member.joined else None
    gate = rooms.gates.gate(member.name)
    return adminstate.ReplicaState(
        name=member.name,
        url=rooms.replicas.configured[member.name].url,
        joined=member.joined,
        loads=member.loads,
        unready_reason=member.unready,
        routable=member.routable,
        unschedulable_reason=member.unschedulable,
        silent_s=now_s - rooms.silences.now.get(member.name, now_s),
        suspicion=member.standing.suspicion,
        in_flight=rooms.replicas.fleet.load(member),
        here=here,
        gate_waiting=0 if gate is None else gate.clients.total(),
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
        waiting=int(sum(account.waiting.values())) if account is not None else 0,
        running=int(sum(account.running.values())) if account is not None else 0,
        report_age_s=now_s - seen.received_s if seen is not None else None,
        inactive_reason=seen.inactive if seen is not None else "",
        unnamed_share=rooms.replicas.unnamed[member.name].share,
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


def _tenants(rooms: Rooms, here: Mapping[str, Here]) -> Steps[tuple[adminstate.TenantState, ...]]:
    """Configured tenants in their order, then other tenants that this router or another one served."""
    config, ledger = rooms.settings.config, rooms.service_ledger
    clients: defaultdict[str, list[ClientFigures]] = defaultdict(list)
    for own in client_figures(ledger.fairness.now, rooms.totals, ledger.weights.declared):
        clients[tenant_of(own.identity)].append(own)
        yield
    declared = {tenant_identity(tenant): tenant for tenant in config.tenancy.tenants}
    tenants = []
    for name in dict.fromkeys((*declared, *clients)):
        tenant = declared.get(name)
        if tenant is None:
            tenant = TenantConfig(namespace=config.namespace, name=clients[name][0].tenant)
        tenants.append((yield from _tenant(rooms, name, tenant, clients=clients[name], here=here)))
    return tuple(tenants)


def _tenant(
    rooms: Rooms,
    name: str,
    tenant: TenantConfig,
    *,
    clients: list[ClientFigures],
    here: Mapping[str, Here],
) -> Steps[adminstate.TenantState]:
    # Encoded one at a time: with many replicas, to encode (and to free) all of them together takes too long.
    shown = []
    for own in clients:
        shown.append(
            msgspec.Raw(
                msgspec.json.encode(_client(rooms, own, here.get(own.identity, NOTHING_HERE)))
            )
        )
        yield
    figures = rooms.service_ledger.fairness.now.tenants.get(name, NO_FIGURES)
    state = adminstate.TenantState(
        namespace=tenant.namespace,
        name=tenant.name,
        weight=rooms.intake.local_weights.get(name, tenant.weight),
        **fields_of(adminstate.Service, figures),
        qoe=float(sum(own.here.qoe for own in clients)),
        qoe_streams=sum(own.here.qoe_streams for own in clients),
    )
    return msgspec.structs.replace(state, clients=tuple(shown))


def _client(rooms: Rooms, own: ClientFigures, seen: Here) -> adminstate.ClientState:
    fleet, here = own.fleet, own.here
    return adminstate.ClientState(
        identity=own.identity,
        name=own.name,
        weight=int(rooms.service_ledger.weights.client(own.identity)),
        here=seen,
        in_flight=here.in_flight,
        requests=here.requests,
        errors=here.errors.total(),
        retries=here.retries,
        input_tokens=here.input_tokens,
        cached_tokens=here.cached_tokens,
        output_tokens=here.output_tokens,
        service=fleet.service,
        owed=fleet.owed,
        requested_per_s=fleet.requested_per_s,
        lead_s=fleet.lead_s,
        backlogged=fleet.backlogged,
        replicas=at_replicas(rooms, own.identity),
    )


def fleet_state(rooms: Rooms, verdict: Judgement) -> adminstate.FleetState:
    """Fairness of the whole fleet, with the verdict on it and on this router's requests."""
    now = rooms.service_ledger.fairness.now
    plain = fields_of(adminstate.FleetState, now)
    return adminstate.FleetState(
        **plain | {"verdict": verdict.sentence, "level": verdict.level.value}
    )


def shares_of(rooms: Rooms, tenant: str = "") -> WindowShares:
    """What the clients of one `namespace/tenant`, or of all, were given over what they were owed. Idle replicas are for all only."""
    now = rooms.service_ledger.fairness.now

    def shown(parts: Mapping[str, T]) -> dict[str, T]:
        return {
            "/".join(names_of(name)): part
            for name, part in parts.items()
            if tenant in ("", tenant_of(name))
        }

    return WindowShares(shown(now.given_over_owed), shown(now.took), 0.0 if tenant else now.idle_s)


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
    accounting, accounts = (
        rooms.service_ledger.accounting,
        rooms.service_ledger.ledger.replica_accounts,
    )
    tenant = tenant_of(identity)
    found = []
    for member in rooms.replicas.fleet:
        incarnation = accounting.incarnation(member.name)
        account = accounts.get(incarnation)
        row = None if account is None else account.clients.get(identity)
        held = None if member.slot is None else credit.get(member.slot)
        if held is None and row is None:
            continue
        itl_tokens, itl_s = accounting.latency(incarnation, identity)
        found.append(
            adminstate.ClientAtReplica(
                replica=member.name,
                credit=held or 0.0,
                deficit=row[DEFICIT] if row else 0.0,
                tenant_deficit=account.tenants.cell(tenant, TENANT_DEFICIT) if account else 0.0,
                service=row[SERVICE] if row else 0.0,
                waiting=int(row[WAITING]) if row else 0,
                running=int(row[RUNNING]) if row else 0,
                itl_tokens=itl_tokens,
                itl_s=itl_s,
            )
        )
    return tuple(found)
