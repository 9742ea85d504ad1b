"""A changed configuration, and the state that `/v1/state` and `/metrics` show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evenkeel_contract import adminstate
from evenkeel_contract.adminstate import StateError, decode_state, encode_state
from evenkeel_contract.routerconfig import (
    Anonymous,
    FleetPolicyName,
    PrefixConfig,
    SchedulingConfig,
    TenantConfig,
)
from evenkeel_fairshare.fleet.contract import EMPTY, NOTHING, Usage
from evenkeel_fairshare.verdict import RunRecord, judge
from evenkeel_router.api.identity import client_of
from evenkeel_router.ledger.totals import RequestTotals
from evenkeel_router.telemetry.metrics import metrics
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.snapshot import Seen, at_replicas, router_state
from msgspec.structs import replace as replace_fields

from tests.support.fakes import replicas
from tests.support.router_rooms import client as a_client
from tests.support.router_rooms import held, reports, rooms_of, selected
from tests.support.routers import applied, config_for, tenancy
from tests.support.steps import result_of


def shown_by(rooms: Rooms, now_s: float = 0.0) -> adminstate.RouterState:
    """What `/v1/state` shows."""
    return decode_state(result_of(router_state(rooms, now_s, Seen(judge(RunRecord())))))


async def test_a_changed_policy_or_block_size_starts_anew_and_the_rest_stays() -> None:
    before = config_for()
    rooms = Rooms.make(before)
    member = rooms.replicas.fleet.add("r0")
    rooms.replicas.fleet.ready(member)
    fleet, policy, index = (
        rooms.replicas.fleet,
        rooms.replicas.fleet.policy,
        rooms.replicas.fleet.index,
    )
    applied(rooms, replace(before, model="other"))
    assert rooms.intake.limits.model == "other"
    assert (rooms.replicas.fleet.policy, rooms.replicas.fleet.index) == (policy, index)
    robin = SchedulingConfig(fleet_policy=FleetPolicyName.ROUND_ROBIN, output_token_weight=5)
    applied(rooms, replace(before, scheduling=robin, prefix=PrefixConfig(text_block_bytes=16)))
    assert rooms.replicas.fleet is fleet
    assert rooms.replicas.fleet.policy.name == "RoundRobin"
    assert rooms.replicas.fleet.index is not index
    assert rooms.totals.cost.output_cost(0, 0, 1) == 5
    plan = fleet.match("c", weight=1.0, text=b"x" * 64, input_tokens=1)
    assert fleet.select(plan, EMPTY) is not None


async def test_every_served_client_is_shown_declared_or_not() -> None:
    config = config_for(tenancy=tenancy(anonymous=Anonymous.SHARE))
    rooms = Rooms.make(config)
    acme = config.tenancy.tenants[0]
    for client in (client_of(acme, "chat"), client_of(acme, "undeclared")):
        totals = rooms.totals.of(client)
        totals.requests += 1
        rooms.totals.settle(totals, rooms.replicas.totals["r0"], Usage(10, 4, 2))
        rooms.service_ledger.ledger.received("r0", client.identity, 10.0)
    rooms.service_ledger.ledger.received("r0", "ns/acme/elsewhere", 5.0)
    for _ in rooms.service_ledger.fairness.steps((), rooms.service_ledger.weights, 1.0):
        pass
    nobody = client_of(TenantConfig(namespace="ns", name="anonymous"), "anonymous")
    rooms.totals.of(nobody).requests += 1
    shown = shown_by(rooms, 5.0)
    first, second = shown.tenants
    assert (first.name, first.weight, first.service) == ("acme", 2, 25.0)
    weights = {client.name: client.weight for client in first.clients}
    assert weights == {"chat": 3, "batch": 1, "undeclared": 1, "elsewhere": 1}
    assert {client.name: client.requests for client in first.clients}["batch"] == 0
    assert (second.name, second.clients[0].identity) == ("anonymous", "ns/anonymous/anonymous")


async def test_replicas_that_make_no_reports_are_not_waited_for() -> None:
    rooms = rooms_of("r0", "r1")
    silent, reporting = replicas(2)
    rooms.replicas.configured = {"r0": silent, "r1": replace(reporting, reports="tcp://r1:1")}
    assert not rooms.replicas.all_reported()
    rooms.replicas.configured = {"r0": silent}
    assert rooms.replicas.all_reported()


async def test_a_client_at_a_replica_is_shown_as_reported_with_its_credit() -> None:
    of, scheduling = a_client(), SchedulingConfig(worker_quantum=20_000)
    rooms = rooms_of("r0", "r1", scheduling=scheduling)
    attempt = selected(rooms, of, gated=False)
    member = attempt.ticket.member
    report = replace_fields(
        held(of, running=2, waiting=3), service=50, deficit=-7, tenant_deficit=-9
    )
    reports(rooms, member.name, "process-1", report)
    at = next(one for one in at_replicas(rooms, of.identity) if one.replica == member.name)
    credit = rooms.replicas.fleet.policy.credit(of.identity)[attempt.ticket.slot]
    assert credit not in (0.0, 20_000.0)
    assert (at.credit, at.deficit, at.tenant_deficit) == (credit, -7, -9)
    assert (at.service, at.waiting, at.running) == (50, 3, 2)
    attempt.refused()


async def test_clients_beyond_the_cap_are_shown_as_one_of_their_tenant() -> None:
    rooms = Rooms.make(config_for())
    rooms.totals = RequestTotals(rooms.totals.cost, max_clients=1)
    tenant = TenantConfig(namespace="ns", name="t")
    for name in ("other", "b", "c"):
        rooms.totals.of(client_of(tenant, name)).requests += 1
    shown = shown_by(rooms)
    requests = {c.identity: c.requests for tenant in shown.tenants for c in tenant.clients}
    assert requests["ns/t/other"] == 1
    assert requests["ns/t/*"] == 2
    text = "".join(metrics(rooms))
    assert 'request_total{client="other",model_name="llama",tenant="t"} 1.0' in text
    assert 'request_total{client="",model_name="llama",tenant="t"} 2.0' in text


async def test_histograms_are_cumulative_as_the_text_format_wants_them() -> None:
    rooms = Rooms.make(config_for())
    totals = rooms.totals.of(client_of(TenantConfig(namespace="ns", name="t"), "a"))
    for seconds in (0.005, 0.2, 1000.0):
        totals.ended(seconds, seconds)
    text = "".join(metrics(rooms))
    labels = 'le="%s",model_name="llama",tenant="t"'
    bucket = "evenkeel_router_request_ttft_seconds_bucket"
    for bound, want in (("0.01", 1), ("0.25", 2), ("300.0", 2), ("+Inf", 3)):
        assert f"{bucket}{{{labels % bound}}} {want}.0" in text


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff"])
def test_what_is_no_state_is_refused(data: bytes) -> None:
    with pytest.raises(StateError, match="not a router's state"):
        decode_state(data)


def test_a_state_of_another_version_is_refused_and_unknown_fields_are_not() -> None:
    state = adminstate.RouterState(
        version=2, time_s=0, uptime_s=0, namespace="", service="", model="", fleet_policy=""
    )
    with pytest.raises(StateError, match="version 2"):
        decode_state(encode_state(state))
    newer = encode_state(state).replace(b'"version":2', b'"version":1,"later":[1]')
    assert decode_state(newer).version == 1


async def test_blocks_that_were_taken_back_or_whose_replica_is_gone_are_not_shown() -> None:
    config = config_for(*replicas(2), prefix=PrefixConfig(text_block_bytes=16))
    rooms = Rooms.make(config)
    rooms.replicas.configured = {replica.name: replica for replica in config.replicas}
    members = [rooms.replicas.fleet.add(replica.name) for replica in config.replicas]
    for member in members:
        rooms.replicas.fleet.ready(member)
    for usage in (Usage(10), NOTHING):  # the second was refused: its blocks are taken back
        plan = rooms.replicas.fleet.match(
            "c", weight=1.0, text=b"%064d" % usage.input_tokens, input_tokens=1
        )
        ticket = rooms.replicas.fleet.select(plan, EMPTY)
        assert ticket is not None
        rooms.replicas.fleet.finished(ticket, usage)
    shown = shown_by(rooms)
    assert [replica.prefix_blocks for replica in shown.replicas] == [4, 0]
    assert shown.prefix_blocks == 4
    text = "".join(metrics(rooms))
    assert 'replica_prefix_blocks{model_name="llama",replica="r0"} 4.0' in text
    assert 'prefix_index_entries{model_name="llama"} 5.0' in text
    rooms.replicas.fleet.lost(members[0])
    assert shown_by(rooms).prefix_blocks == 0
