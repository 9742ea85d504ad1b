"""Served against owed, leads, shares and bounds of the whole fleet, out of a ledger."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from evenkeel_contract.routerconfig import ClientConfig, TenancyConfig, TenantConfig
from evenkeel_fairshare.ledger import CarryRules, CompactionRules, Compactor, Ledger, ReplicaRow
from evenkeel_fairshare.window import WINDOW_S, Taken
from evenkeel_router.ledger.fairness import Fairness, FleetFigures
from evenkeel_router.ledger.weights import ConfiguredWeights

A, B, C = "ns/t/a", "ns/t/b", "ns/u/c"
TENANTS = TenancyConfig(
    tenants=(
        TenantConfig(
            namespace="ns", name="t", weight=1, clients=(ClientConfig(name="a", weight=3),)
        ),
        TenantConfig(namespace="ns", name="u", weight=1),
    )
)
WEIGHTS = ConfiguredWeights(TENANTS)


class World:
    """One router, one replica, time in steps of ten seconds."""

    def __init__(self, *, max_clients: int = 1000, replicas: int = 1) -> None:
        self.ledger = Ledger("here", rules=CarryRules(quantum=100, overshoot=500), weights=WEIGHTS)
        self.ledger.members = frozenset({"here"})
        self.alive = [f"replica-{n}" for n in range(replicas)]
        self.truth = Fairness(self.ledger, max_clients=max_clients)
        self.at = 0
        self.routable: list[str] | None = None

    def tick(
        self,
        served: Mapping[str, float],
        *,
        waiting: int = 1,
        replica: int = 0,
        requests: Mapping[str, int] | None = None,
        running: int = 0,
    ) -> FleetFigures:
        """What everybody was given by a replica until now. `requests`: those admitted until now; by default unknown."""
        self.at += 1
        rows = [
            ReplicaRow(
                client,
                service=service,
                normalised=service / WEIGHTS.client(client),
                requests=(requests or {}).get(client, 0),
                waiting=waiting,
                running=running,
            )
            for client, service in served.items()
        ]
        name = self.alive[replica]
        self.ledger.observe(name, since=self.ledger.sequence(name), sequence=self.at, rows=rows)
        return self.look()

    def look(self) -> FleetFigures:
        for _ in self.truth.steps(self.alive, WEIGHTS, 10.0 * self.at, routable=self.routable):
            pass
        return self.truth.now


def test_where_all_is_fair_served_and_owed_rise_together() -> None:
    world = World()
    world.tick({A: 0, B: 0, C: 0})
    now = world.tick({A: 75, B: 25, C: 100})
    for client, want in ((A, 75), (B, 25), (C, 100)):
        assert (now.clients[client].service, now.clients[client].owed) == (
            want,
            pytest.approx(want),
        )
    assert (now.share_error, now.jain, now.lead_s) == (0, 1, 0)
    assert now.tenants["ns/t"].service == now.tenants["ns/u"].service == 100


def test_a_client_that_got_less_is_owed_the_rest_and_the_others_lead() -> None:
    world = World()
    world.tick({A: 0, B: 0, C: 0})
    now = world.tick({A: 30, B: 70, C: 100})
    assert now.clients[A].owed == pytest.approx(75)
    assert now.clients[B].owed == pytest.approx(25)
    assert now.share_error == pytest.approx(1 - 30 / 75)
    assert now.jain < 1
    # b is 70 - 30/3 = 60 ahead; it takes 4 weights * 60 = 240 of the tenant's 10 a second to even out.
    assert now.lead_s == now.clients[B].lead_s == pytest.approx(24)
    assert now.clients[A].lead_s == 0
    assert now.backlogged == 3


def test_a_client_is_owed_no_more_than_its_waiting_requests_cost() -> None:
    world = World()
    before = {B: 2, C: 10}
    world.tick({B: 20, C: 1000}, requests=before)
    now = world.tick({B: 20, C: 1200}, requests=before)
    assert now.clients[B].owed == pytest.approx(20 + 10), "one request waits, and they cost 10"
    assert now.clients[C].owed == pytest.approx(1000 + 190)
    now = world.tick({B: 50, C: 1400}, requests={B: 5, C: 10})
    assert now.clients[B].owed == pytest.approx(20 + 10 + 30 + 40), (
        "three that waited were admitted"
    )


def test_while_no_request_of_a_client_has_finished_it_is_owed_its_share() -> None:
    world = World()
    begun = {B: 2, C: 10}
    world.tick({B: 20, C: 1000}, requests=begun, running=2)
    assert world.tick({B: 20, C: 1200}, requests=begun, running=2).clients[B].owed == 20 + 100


def test_what_a_request_costs_follows_the_clients_requests_within_minutes() -> None:
    world = World()
    requests = {B: 1000, C: 10}
    world.tick({B: 10_000, C: 1000}, requests=requests)
    for n in range(1, 13):
        requests = {B: 1000 + n, C: 10}
        world.tick({B: 10_000 + 5000 * n, C: 1000 + 10_000 * n}, requests=requests)
    owed = world.truth.now.clients[B].owed
    now = world.tick({B: 70_000, C: 141_000}, requests=requests)
    assert now.clients[B].owed - owed == pytest.approx(5000, rel=0.05), "no longer 10, or 70"


def test_a_client_that_was_idle_is_owed_nothing_for_that_time() -> None:
    world = World()
    world.tick({A: 0, B: 0})
    world.tick({A: 0, B: 40})  # a is behind
    world.tick({A: 0}, waiting=0)
    for n in range(1, 9):
        world.tick({B: 40 + 1000 * n})
    assert world.tick({A: 0, B: 8040}).clients[B].lead_s == 0
    now = world.tick({A: 75, B: 8065})
    assert (now.clients[A].lead_s, now.clients[B].lead_s) == (0, 0)


def test_a_lead_is_worked_off_while_the_others_are_served() -> None:
    world = World()
    world.tick({A: 0, B: 0})
    leads = [world.tick({A: 30, B: 70}).clients[B].lead_s]
    for more in (60, 120, 180):
        now = world.tick({A: 30 + more, B: 70})
        leads.append(now.clients[B].lead_s)
    assert leads == sorted(leads, reverse=True)
    assert leads[-1] == 0


def test_a_client_that_left_ahead_returns_with_the_rest_of_its_lead() -> None:
    world = World()
    world.tick({A: 0, B: 0, C: 0})
    world.tick({A: 30, B: 70, C: 100})  # b is 45 ahead, a 15 behind; c is level
    world.tick({B: 70}, waiting=0)
    world.tick({A: 30, C: 100})
    assert world.truth._ahead[B] == pytest.approx(45)
    world.tick({A: 60, C: 130})
    assert world.truth._ahead[B] == pytest.approx(35), "a was given 30 over a weight of 3"
    for n in range(1, 6):
        world.tick({A: 60 + 30 * n, C: 130 + 30 * n})
    assert B not in world.truth._ahead


def test_a_lead_ends_once_nothing_waits_as_at_the_replicas() -> None:
    world = World()
    d = "ns/t/d"
    world.tick({A: 0, B: 0, d: 0})
    assert world.tick({A: 0, B: 70, d: 30}).clients[B].lead_s > 0
    world.tick({A: 0, B: 70, d: 30}, waiting=0)
    world.tick({B: 70, d: 30})
    assert world.tick({B: 80, d: 40}).lead_s == 0


def test_seconds_of_a_lead_are_those_in_which_clients_wait() -> None:
    """A fleet with few requests serves little in a minute, but what it can serve in a second is the same."""
    world = World()
    world.tick({A: 0, B: 0}, waiting=0)
    for _ in range(4):
        world.tick({A: 0, B: 0}, waiting=0)
    world.tick({A: 0, B: 0})
    now = world.tick({A: 300, B: 700})
    # b is 700 - 250 = 450 ahead of its share and a is 450 behind, over 3: 600 apart, of 100 a second over 4 weights.
    assert now.clients[B].lead_s == pytest.approx(600 * 4 / 100)


def test_a_client_that_waits_with_its_share_is_beyond_it() -> None:
    world = World()
    for n in range(7):
        now = world.tick({A: 75 * n, B: 25 * n, C: 100 * n})
    assert now.beyond_share == {A, B, C}
    assert now.waiting_within_share == 0


def test_a_client_that_waits_with_less_than_its_share_is_within_it() -> None:
    world = World()
    for n in range(7):
        now = world.tick({A: 30 * n, B: 70 * n, C: 100 * n})
    assert now.beyond_share == {B, C}
    assert now.waiting_within_share == 1


def test_a_client_that_hardly_waits_is_within_its_share() -> None:
    world = World()
    for n in range(7):
        now = world.tick({A: 900 * n, B: 25 * n}, waiting=0)
    assert now.beyond_share == frozenset()


def test_who_is_not_backlogged_is_owed_what_it_got() -> None:
    world = World()
    world.tick({A: 0, B: 0}, waiting=0)
    now = world.tick({A: 90, B: 10}, waiting=0)
    assert (now.clients[A].owed, now.clients[B].owed) == (90, 10)
    assert (now.clients[A].lead_s, now.tenants["ns/t"].lead_s) == (0, 0)
    assert (now.share_error, now.lead_s, now.jain, now.backlogged) == (0, 0, 1, 0)


def test_what_was_before_this_router_came_was_owed_as_it_was_given() -> None:
    world = World()
    now = world.tick({A: 10, B: 990})
    assert (now.clients[A].owed, now.clients[B].owed) == (10, 990)


def test_shares_are_compared_over_a_window_only() -> None:
    world = World()
    world.tick({A: 0, B: 0})
    world.tick({A: 0, B: 300})
    assert world.truth.now.share_error == 1
    for n in range(1, 9):
        now = world.tick({A: 75 * n, B: 300 + 25 * n})
    assert now.share_error == 0
    assert 60 <= now.window_s < 75


def test_the_bound_ratio_covers_clients_that_wait_everywhere() -> None:
    world = World(replicas=2)
    served = {A: 0.0, B: 0.0}
    for replica in (0, 1):
        world.tick(served, replica=replica)
    rows = [
        ReplicaRow(A, deficit=-500, waiting=1),
        ReplicaRow(B, deficit=100, waiting=1),
    ]
    for name in world.alive:
        world.ledger.observe(name, since=0, sequence=50, rows=rows)
    now = world.look()
    # Standings are 1000/3 and -200; the theorem allows 2·(500 + 300 + 1)/3 + 2·(500 + 100 + 1) and a little.
    assert 0.2 < now.bound_ratio < 0.4
    world.ledger.observe(
        world.alive[1], since=0, sequence=51, rows=[ReplicaRow(B, deficit=100, waiting=0)]
    )
    assert world.look().bound_ratio == 0


def test_clients_beyond_the_bound_of_labels_share_one_of_their_tenant() -> None:
    world = World(max_clients=1)
    now = world.tick({A: 5, B: 6, C: 100})
    assert {name: own.service for name, own in now.clients.items()} == {C: 100, "ns/t/*": 11}
    assert now.tenants["ns/t"].service == 11


def test_a_client_that_waits_and_was_never_served_has_figures_of_its_own() -> None:
    world = World()
    world.tick({A: 0, C: 100})
    now = world.tick({A: 0, C: 300})
    assert set(now.clients) == {A, C}
    assert now.clients[A].backlogged
    assert now.clients[A].owed == pytest.approx(100)
    assert now.tenants["ns/t"].owed == 0, "it may leave, and this never falls"
    now = world.tick({A: 20, C: 480})
    assert now.clients[A].owed == now.tenants["ns/t"].owed == pytest.approx(200)


def test_only_so_many_clients_without_service_have_figures_of_their_own() -> None:
    world = World(max_clients=2)
    world.tick({A: 0, B: 0, C: 100})
    now = world.tick({A: 0, B: 0, C: 300})
    assert set(now.clients) == {A, C, "ns/t/*"}
    assert now.clients["ns/t/*"].backlogged


def test_a_client_named_other_does_not_share_an_entry_with_the_other_clients() -> None:
    world = World(max_clients=1)
    now = world.tick({A: 5, B: 6, "ns/t/other": 100})
    assert {name: own.service for name, own in now.clients.items()} == {
        "ns/t/other": 100,
        "ns/t/*": 11,
    }


def test_a_client_that_was_aged_out_has_no_figures_and_its_tenant_keeps_them() -> None:
    world = World()
    world.tick({A: 40, C: 10}, waiting=0)
    world.ledger.closed("replica-0")
    compactor = Compactor(world.ledger, CompactionRules(max_clients=0))
    compactor.compact(["here"], live=(), now_s=0)
    compactor.compact(["here"], live=(), now_s=1.0)
    world.at += 1
    now = world.look()
    assert not now.clients
    assert world.truth.known == 0
    assert (now.tenants["ns/t"].service, now.tenants["ns/t"].owed) == (40, 40)


def test_requests_are_served_between_the_steps() -> None:
    world = World()
    world.tick({f"ns/t/{n}": n for n in range(500)})
    world.tick({f"ns/t/{n}": 2 * n for n in range(500)})
    world.at += 1
    assert sum(1 for _ in world.truth.steps(world.alive, WEIGHTS, 99.0)) > 500


def test_what_waits_costs_the_mean_of_the_clients_admitted_requests() -> None:
    world = World()
    world.tick({A: 0, B: 0}, waiting=4, requests={A: 0, B: 0})
    assert world.truth.now.tenants["ns/t"].waiting == 8 * 1000, "no cost is known yet"
    now = world.tick({A: 600, B: 50}, waiting=4, requests={A: 3, B: 1}, running=1)
    assert (now.clients[A].waiting, now.clients[B].waiting) == (4 * 200, 4 * 50)
    assert now.tenants["ns/t"].waiting == 4 * 250
    assert world.tick({A: 600, B: 50}, waiting=0).clients[A].waiting == 0


def test_a_replica_is_saturated_while_requests_wait_there() -> None:
    world = World(replicas=2)
    for n in range(4):
        world.tick({A: 300.0 * n}, waiting=2)
    # In steps of ten seconds; the first one shows only that requests wait.
    assert (world.truth.now.saturated_s, world.truth.now.saturated_service) == (20, 600)
    world.tick({B: 1000.0}, waiting=0, replica=1)
    now = world.tick({A: 1200.0}, waiting=0)
    assert (now.saturated_s, now.saturated_service) == (30, 600)


def test_the_routers_of_a_replica_without_reports_add_up_to_one_replica() -> None:
    world = World()
    world.alive = ["~r@one#1", "~r@two#7"]
    for n in range(4):
        world.tick({A: 300.0 * n}, waiting=1)
        world.tick({B: 300.0 * n}, waiting=0, replica=1)
    now = world.truth.now
    assert now.saturated_service / now.saturated_s == 600 / 20


def test_a_client_that_waited_in_less_than_half_of_a_window_is_not_judged() -> None:
    world, ticks = World(), int(WINDOW_S / 10)
    for n in range(ticks + 1):
        now = world.tick({A: 75 * n, B: 25 * n})
    assert set(now.given_over_owed) == {A, B}
    world.tick({A: 75 * ticks}, waiting=0)
    for n in range(ticks + 2, ticks + 2 + int(0.7 * ticks)):
        now = world.tick({B: 25 * n})
    assert set(now.given_over_owed) == {B}


def test_those_that_took_and_the_idle_seconds_are_with_the_shares() -> None:
    world = World(replicas=2)
    world.ledger.observe("replica-1", since=0, sequence=1, rows=[])
    for n in range(4):
        now = world.tick({A: 20.0 * n, B: 80.0 * n})
    assert now.given_over_owed == {A: pytest.approx(20 / 75), B: pytest.approx(80 / 25)}
    assert now.took == {B: Taken(0.8, 0.25)}
    assert now.idle_s == 30.0


def test_a_replica_that_may_get_no_requests_is_not_idle() -> None:
    world = World(replicas=2)
    world.ledger.observe("replica-1", since=0, sequence=1, rows=[])
    world.routable = ["replica-0"]
    for n in range(4):
        now = world.tick({A: 20.0 * n, B: 80.0 * n})
    assert now.idle_s == 0.0
