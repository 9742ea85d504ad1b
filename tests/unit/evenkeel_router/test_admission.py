"""Limits: rates per tenant, concurrency per client, tenant and router."""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from evenkeel_contract.routerconfig import ClientLimits, LimitsConfig, TenantConfig, TenantLimits
from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.identity import Client, client_of
from evenkeel_router.api.own_limits import default_of
from evenkeel_router.ledger.limit_parts import LimitParts
from evenkeel_router.request.admission import Admission, BodyMemory, PartUsedUp
from hypothesis import given
from hypothesis import strategies as st

from tests.support.limit_parts import whole_limits


def client(name: str = "c", *, tenant: str = "t", **limits: int) -> Client:
    return client_of(TenantConfig(namespace="ns", name=tenant, limits=TenantLimits(**limits)), name)


def admission(**limits: Any) -> Admission:
    """Of a router that is alone."""
    return Admission(LimitsConfig(**limits), whole_limits())


def refused(
    gate: Admission, who: Client, now_s: float, tokens: int = 1, sequences: int = 1
) -> Refusal:
    before = gate.running
    with pytest.raises(Refusal) as caught:
        gate.enter(who, tokens, now_s, sequences)
    assert gate.running == before
    return caught.value


def test_a_burst_may_come_at_once_and_then_one_at_a_time() -> None:
    gate, who = admission(), client(requests_per_minute=60, burst_requests=7)
    for _ in range(7):
        gate.enter(who, 1, 0.0)
    refusal = refused(gate, who, 0.0)
    assert (refusal.outcome, refusal.code) == (Outcome.RATE_LIMITED, "requests_per_minute")
    assert refusal.retry_after == "1"
    assert (
        refusal.message
        == "The tenant used up its limit of 60 requests per minute. Its burst is 7 requests; one more is free every 1 s."
    )
    gate.enter(who, 1, 1.0)
    assert refused(gate, who, 1.5).retry_after_s == pytest.approx(0.5)


@pytest.mark.parametrize(("per_minute", "burst"), [(60, 6), (15, 1), (9, 1), (1, 1)])
def test_the_burst_is_a_tenth_of_the_limit_by_default(per_minute: int, burst: int) -> None:
    gate, who = admission(), client(requests_per_minute=per_minute)
    for _ in range(burst):
        gate.enter(who, 1, 0.0)
    refused(gate, who, 0.0)
    gate.enter(who, 1, 60 / per_minute)


def test_the_limit_and_one_burst_enter_in_a_minute() -> None:
    gate, who = admission(), client(requests_per_minute=60)
    entered = 0
    for tick in range(60 * 50):
        with suppress(Refusal):
            gate.enter(who, 1, tick / 50)
            entered += 1
    assert entered == 60 + 6 - 1  # the last one is due when the minute ends


def test_limits_are_per_tenant_not_per_client_and_not_shared() -> None:
    gate = admission()
    gate.enter(client("a", requests_per_minute=1), 1, 0.0)
    refused(gate, client("b", requests_per_minute=1), 0.0)
    gate.enter(client("a", tenant="u", requests_per_minute=1), 1, 0.0)
    assert gate.running == 2


def with_own(who: Client, **own: int) -> Client:
    return replace(who, own_limits=TenantLimits(**own), limits=replace(who.limits))


def test_a_client_with_limits_of_its_own_leaves_the_others_alone() -> None:
    gate, other = admission(), client("other")
    gate.enter(other, 1, 0.0)  # the tenant was seen without limits before
    who = with_own(client("who"), max_concurrent=2)
    gate.enter(who, 1, 0.0)
    gate.enter(who, 1, 0.0)
    refusal = refused(gate, who, 0.0)
    assert (type(refusal), refusal.code) == (Refusal, "max_concurrent")
    assert refusal.message == "The client has 2 requests in flight, which is its limit."
    gate.enter(other, 1, 0.0)
    gate.leave(who, 1, 0.0)
    gate.enter(who, 1, 0.0)
    gate.leave(other, 1, 0.0)
    refused(gate, who, 0.0)


def test_rates_of_a_client_count_beside_those_of_its_tenant() -> None:
    gate = admission()
    limits = {"requests_per_minute": 600, "burst_requests": 9}
    who, other = with_own(client("who", **limits), requests_per_minute=60), client("o", **limits)
    for _ in range(6):
        gate.enter(who, 1, 0.0)
    assert refused(gate, who, 0.0).message.startswith("The client used up its limit of 60 requests")
    for _ in range(3):
        gate.enter(other, 1, 0.0)
    assert "tenant" in refused(gate, who, 0.0).message
    gate.enter(who, 1, 1.0)
    gate.correct(who, 5, 1.1)
    gate.leave(who, 0, 1.1)


def defaults(name: str, **own: int) -> Client:
    limits = TenantLimits(max_concurrent=3, default_client=ClientLimits(**own))
    return client_of(TenantConfig(namespace="ns", name="t", limits=limits), name)


def test_each_client_of_a_tenant_has_the_default_beside_the_tenants_limit() -> None:
    gate = admission()
    gate.enter(client("c", max_concurrent=3), 1, 0.0)  # the tenant was seen without a default
    gate.leave(client("c", max_concurrent=3), 1, 0.0)
    a, b, c = (defaults(name, max_concurrent=2) for name in "abc")
    gate.enter(a, 1, 0.0)
    gate.enter(a, 1, 0.0)
    assert refused(gate, a, 0.0).message.startswith("The client has 2 requests in flight")
    gate.enter(b, 1, 0.0)
    assert refused(gate, c, 0.0).message.startswith("The tenant has 3 requests in flight")
    gate.leave(a, 1, 0.0)
    gate.enter(a, 1, 0.0)


def test_rates_of_the_default_count_for_each_client_alone() -> None:
    gate = admission()
    a, b = defaults("a", requests_per_minute=60), defaults("b", tokens_per_minute=600)
    for _ in range(6):
        gate.enter(a, 1, 0.0)
        gate.leave(a, 1, 0.0)
    assert refused(gate, a, 0.0).code == "requests_per_minute"
    gate.enter(b, 60, 0.0)
    assert refused(gate, b, 0.0).code == "tokens_per_minute"
    gate.enter(a, 1, 1.0)


@pytest.mark.parametrize("given", [None, ClientLimits()])
def test_a_default_without_a_limit_is_none(given: ClientLimits | None) -> None:
    assert default_of(TenantLimits(max_concurrent=3, default_client=given)) is None


def test_what_is_remembered_of_tenants_and_limited_clients_is_bounded() -> None:
    gate = admission()
    for number in range(4200):
        who = with_own(client(f"c{number}", tenant=f"t{number}"), max_concurrent=1)
        gate.enter(who, 1, float(number))
        if number:
            gate.leave(who, 1, float(number))
    assert len(gate._limited) <= 4097
    assert "ns/t0/c0" in gate._limited
    plain = admission()
    for number in range(4200):
        who = client(tenant=f"t{number}")
        plain.enter(who, 1, 0.0)
        plain.leave(who, 1, 0.0)
    assert len(plain._tenants) <= 4097


def test_an_exact_count_takes_the_place_of_the_estimate() -> None:
    gate, who = admission(), client(tokens_per_minute=600, burst_tokens=600)
    gate.enter(who, 100, 0.0)
    gate.correct(who, -40, 0.0)  # 60 in truth
    gate.enter(who, 100, 0.0)
    gate.correct(who, 440, 0.0)  # 540: nothing is left
    assert refused(gate, who, 0.0).code == "tokens_per_minute"
    gate.correct(who, -1, 0.0)
    gate.enter(who, 1, 0.0)
    gate.correct(client(tenant="t"), 5, 0.0)  # without limits by now: nothing to count


def test_tokens_are_estimated_at_the_start_and_settled_at_the_end() -> None:
    gate, who = admission(), client(tokens_per_minute=600, burst_tokens=600)
    gate.enter(who, 100, 0.0)
    gate.enter(who, 100, 0.0)
    gate.leave(who, 500, 0.0)  # the budget is spent: 100 beyond what there was
    refusal = refused(gate, who, 0.0)
    assert refusal.code == "tokens_per_minute"
    assert refusal.retry_after_s == pytest.approx(10.1)  # until there is a whole token
    gate.leave(who, -100, 0.0)  # the other one was answered from nothing
    refused(gate, who, 0.0)
    gate.enter(who, 100, 1.0)


def test_a_request_larger_than_the_whole_budget_is_served_now_and_then() -> None:
    gate, who = admission(), client(tokens_per_minute=60, burst_tokens=60)
    gate.enter(who, 600, 0.0)
    assert refused(gate, who, 1.0).retry_after_s == pytest.approx(540.0)
    gate.enter(who, 600, 541.1)


def test_concurrency_is_bounded_per_tenant_per_client_and_in_all() -> None:
    gate = admission(max_concurrent_per_client=2, max_concurrent=4)
    a, b = client("a", max_concurrent=3), client("b", max_concurrent=3)
    gate.enter(a, 1, 0.0)
    gate.enter(a, 1, 0.0)
    assert refused(gate, a, 0.0).code == "max_concurrent"  # two of the client
    gate.enter(b, 1, 0.0)
    assert "tenant" in refused(gate, b, 0.0).message  # three of the tenant
    stranger = client("x", tenant="u")
    gate.enter(stranger, 1, 0.0)
    full = refused(gate, client("y", tenant="v"), 0.0)  # four in all
    assert (full.outcome, full.code, full.retry_after) == (Outcome.UNAVAILABLE, "overloaded", "1")
    assert gate.running == 4
    gate.leave(a, 0, 0.0)
    gate.leave(a, 0, 0.0)
    assert gate.running == 2
    gate.enter(b, 1, 0.0)


def flood(gate: Admission, who: Client, held: Counter[str] | None = None) -> Refusal:
    """Enter until refused. `held` counts those that entered, by client."""
    held = Counter() if held is None else held
    for _ in range(10_000):
        try:
            gate.enter(who, 1, 0.0)
            held[who.identity] += 1
        except Refusal as refusal:
            return refusal
    raise AssertionError("never refused")


def test_a_flooding_client_leaves_room_for_all_others() -> None:
    gate = admission(max_concurrent=900)
    refusal = flood(gate, client("a", tenant="flood"))
    assert (refusal.outcome, refusal.code) == (Outcome.RATE_LIMITED, "max_concurrent")
    assert 780 <= gate.running <= 800  # 8/9 of the tenant's 8/9, and the rest of it for
    flood(gate, client("b", tenant="flood"))  # the tenant's other clients
    assert 790 <= gate.running <= 800
    for number in range(90):  # strangers come as if nobody else was there
        gate.enter(client("c", tenant=f"t{number}"), 1, 0.0)


def test_flooding_clients_hold_equal_parts_and_room_stays() -> None:
    gate, rng = admission(max_concurrent=900), Random(1)
    tenants = [client("c", tenant=f"t{number}") for number in range(6)]
    held: Counter[str] = Counter()
    for who in tenants:
        flood(gate, who, held)
    for step in range(5000):
        running = [who for who in tenants for _ in range(held[who.identity])]
        for who in rng.sample(running, 20):
            gate.leave(who, 0, 0.0)
            held[who.identity] -= 1
        for who in rng.sample(tenants, 6):
            flood(gate, who, held)
        if step > 1000:
            assert gate.running <= 900 - 10  # about 900 / (8·6 + 1) are free
    assert max(held.values()) <= 1.5 * min(held.values())


def test_one_alone_may_have_the_only_place() -> None:
    gate = admission(max_concurrent=1)
    gate.enter(client(), 1, 0.0)
    assert refused(gate, client(tenant="u"), 0.0).code == "overloaded"


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 3), st.booleans()), max_size=200),
)
def test_a_newcomer_is_refused_only_where_nothing_is_free(
    places: int, script: list[tuple[str, int, bool]]
) -> None:
    gate = admission(max_concurrent=places)
    running: list[Client] = []
    for tenant, name, comes in script:
        who = client(str(name), tenant=tenant)
        if comes:
            with suppress(Refusal):
                gate.enter(who, 1, 0.0)
                running.append(who)
        elif who in running:
            running.remove(who)
            gate.leave(who, 0, 0.0)
        assert gate.running == len(running) <= places
    newcomer = client("n", tenant="new")
    if len(running) < places:
        gate.enter(newcomer, 1, 0.0)
    else:
        assert refused(gate, newcomer, 0.0).code == "overloaded"


def test_a_changed_limit_keeps_what_was_used() -> None:
    gate = admission()
    old = client(requests_per_minute=10, burst_requests=10)
    new = client(requests_per_minute=20, burst_requests=20)
    for _ in range(10):
        gate.enter(old, 1, 0.0)
    for _ in range(10):
        gate.enter(new, 1, 0.0)
    refused(gate, new, 0.0)
    gate.leave(old, 0, 0.0)  # a request of the older configuration ends; the newer one holds
    refused(gate, new, 0.0)


def test_a_limit_that_is_set_later_counts_the_requests_in_flight() -> None:
    gate, before, after = admission(), client(), client(max_concurrent=2)
    gate.enter(before, 1, 0.0)
    gate.enter(before, 1, 0.0)
    assert "has 2 requests in flight, which is its limit" in refused(gate, after, 0.0).message
    gate.leave(before, 0, 0.0)
    gate.enter(before, 1, 0.0)  # without a limit for a while
    refused(gate, after, 0.0)
    gate.leave(after, 0, 0.0)
    gate.enter(after, 1, 0.0)
    refused(gate, after, 0.0)


def test_a_router_without_a_part_says_why_it_refuses() -> None:
    gate = Admission(LimitsConfig(), LimitParts("r"))
    refusal = refused(gate, client(requests_per_minute=60), 0.0)
    assert isinstance(refusal, PartUsedUp)
    assert refusal.message == (
        "This router cannot count the tenant's limits yet, because not all routers answer. Send the request again."
    )
    assert (refusal.code, refusal.retry_after) == ("requests_per_minute", "1")
    gate.enter(client(tenant="u"), 1, 0.0)  # a tenant without limits


def test_memory_that_was_given_back_may_be_used_again() -> None:
    memory = BodyMemory(900)
    tenant = memory.of("ns/t")
    for _ in range(9):
        tenant.reserve(800)
        with pytest.raises(Refusal, match="already hold 800 bytes"):
            tenant.reserve(50)
        with pytest.raises(Refusal, match="which is its limit"):
            memory.of("ns/u").reserve(101)
        tenant.release(800)
    assert memory.used_bytes == 0
