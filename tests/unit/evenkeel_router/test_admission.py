"""Limits: rates per tenant, concurrency per client, tenant and router."""

from typing import Any

import pytest
from evenkeel_contract.routerconfig import LimitsConfig, TenantConfig, TenantLimits
from evenkeel_router.core.admission import Admission, TokenBucket
from evenkeel_router.core.errors import Refusal
from evenkeel_router.core.identity import Client, client_of
from evenkeel_router.core.outcomes import Outcome


def client(name: str = "c", *, tenant: str = "t", **limits: int) -> Client:
    return client_of(TenantConfig(namespace="ns", name=tenant, limits=TenantLimits(**limits)), name)


def admission(**limits: Any) -> Admission:
    return Admission(LimitsConfig(**limits))


def refused(gate: Admission, who: Client, now_s: float, tokens: int = 1) -> Refusal:
    before = gate.running
    with pytest.raises(Refusal) as caught:
        gate.enter(who, tokens, now_s)
    assert gate.running == before
    return caught.value


def test_a_minutes_worth_may_come_at_once_and_then_one_at_a_time() -> None:
    gate, who = admission(), client(requests_per_minute=60)
    for _ in range(60):
        gate.enter(who, 1, 0.0)
    refusal = refused(gate, who, 0.0)
    assert (refusal.outcome, refusal.code) == (Outcome.RATE_LIMITED, "requests_per_minute")
    assert refusal.retry_after == "1"
    gate.enter(who, 1, 1.0)
    assert refused(gate, who, 1.5).retry_after_s == pytest.approx(0.5)


def test_limits_are_per_tenant_not_per_client_and_not_shared() -> None:
    gate = admission()
    gate.enter(client("a", requests_per_minute=1), 1, 0.0)
    refused(gate, client("b", requests_per_minute=1), 0.0)
    gate.enter(client("a", tenant="u", requests_per_minute=1), 1, 0.0)


def test_tokens_are_estimated_at_the_start_and_settled_at_the_end() -> None:
    gate, who = admission(), client(tokens_per_minute=600)
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
    gate, who = admission(), client(tokens_per_minute=60)
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
    assert gate.running_of(a.identity) == 2
    gate.leave(a, 0, 0.0)
    gate.leave(a, 0, 0.0)
    assert gate.running_of(a.identity) == 0
    gate.enter(b, 1, 0.0)


def test_a_changed_limit_keeps_what_was_used() -> None:
    gate = admission()
    old, new = client(requests_per_minute=10), client(requests_per_minute=20)
    for _ in range(10):
        gate.enter(old, 1, 0.0)
    for _ in range(10):
        gate.enter(new, 1, 0.0)
    refused(gate, new, 0.0)
    gate.leave(old, 0, 0.0)  # a request of the older configuration ends; the newer one holds
    refused(gate, new, 0.0)


def test_a_clock_that_stands_still_gives_nothing_and_one_that_jumps_back_takes_nothing() -> None:
    bucket = TokenBucket(60, 100.0)
    bucket.take(60, 100.0)
    assert bucket.level(100.0) == 0
    assert bucket.level(50.0) == 0
    assert bucket.level(101.0) == pytest.approx(1.0)
    assert bucket.wait_s(1.0, 101.0) == 0
