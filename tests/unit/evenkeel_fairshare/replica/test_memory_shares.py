"""The shares of the KV pool (R16): who has a claim, who gives memory back, and in which order."""

from __future__ import annotations

import random

import pytest
from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.memory_shares import (
    CLAIM_S,
    LOOK_S,
    WHOLE_CLAIM_S,
    MemoryShares,
)

POOL = 1000


def request(id: str, client: str, tokens: int, *, tenant: str = "", weight: float = 1.0) -> Request:
    made = Request(
        id=id,
        client=client,
        tenant=tenant or client,
        arrival_s=0.0,
        input_tokens=tokens,
        max_output_tokens=500,
        tenant_weight=weight,
    )
    made.extend_tokens = tokens
    return made


def running(shares: MemoryShares, *requests: Request) -> None:
    for one in requests:
        shares.opens(one)
        shares.starts(one)
        shares.decodes(one)


def claimed(
    shares: MemoryShares, claimant: Request, missing_tokens: int, *, waits_s: float = 2 * CLAIM_S
) -> list[str]:
    """What goes back while `claimant` waits."""
    shares.lacks(claimant, missing_tokens)
    now_s = 10.0
    while now_s < 10.0 + waits_s:
        if shares.wants_pass(now_s):
            shares.lacks(claimant, missing_tokens)
            given = [one.id for one in shares.given_back()]
            shares.end_pass()
            return given
        now_s += LOOK_S
    return []


def test_the_smallest_loss_of_the_client_above_its_share_goes_first():
    shares = MemoryShares(POOL)
    running(shares, request("large", "a", 400), request("small", "a", 50), request("b", "a", 100))
    chat = request("chat", "c", 40)
    shares.opens(chat)
    assert claimed(shares, chat, 120) == ["small", "b"]


def test_decode_steps_count_as_memory_held():
    shares = MemoryShares(POOL)
    old, new = request("old", "a", 300), request("new", "a", 310)
    running(shares, old)
    shares.stepped(20)
    running(shares, new)
    chat = request("chat", "c", 40)
    shares.opens(chat)
    assert claimed(shares, chat, 1) == ["new"]  # 311 tokens beside 321


def test_nobody_is_taken_below_its_share():
    shares = MemoryShares(POOL)
    running(shares, request("one", "a", 290), request("two", "a", 300))
    chat = request("chat", "c", 40)
    shares.opens(chat)
    assert claimed(shares, chat, 900) == ["one"]  # then "a" holds 301 of its 500


@pytest.mark.parametrize(("tokens", "waits_s"), [(40, 0.0), (501, 5.0)])
def test_without_time_or_beyond_its_share_a_client_has_no_claim(tokens, waits_s):
    shares = MemoryShares(POOL)
    running(shares, request("large", "a", 900))
    chat = request("chat", "c", tokens)
    shares.opens(chat)
    shares.lacks(chat, 100)
    times = [1.0 + LOOK_S * step for step in range(int(waits_s / LOOK_S) + 2)]
    assert not any(map(shares.wants_pass, times))
    assert shares.given_back() == []


@pytest.mark.parametrize(("output_tokens", "given"), [(460, ["large"]), (461, [])])
def test_a_claim_counts_the_output_that_is_computed_again(output_tokens, given):
    shares = MemoryShares(POOL)
    running(shares, request("large", "a", 900))
    retracted = request("long", "b", 40)
    retracted.output_tokens = output_tokens
    shares.opens(retracted)
    assert claimed(shares, retracted, 100, waits_s=2 * WHOLE_CLAIM_S) == given


@pytest.mark.parametrize(
    ("tokens", "waits_s", "given"),
    [
        (250, CLAIM_S + LOOK_S, ["large"]),
        (251, WHOLE_CLAIM_S - 2 * LOOK_S, []),
        (251, WHOLE_CLAIM_S + 2 * LOOK_S, ["large"]),
        (500, WHOLE_CLAIM_S + 2 * LOOK_S, ["large"]),
        (501, 2 * WHOLE_CLAIM_S, []),
    ],
)
def test_beyond_half_of_its_share_a_client_waits_for_longer(tokens, waits_s, given):
    shares = MemoryShares(POOL)
    running(shares, request("large", "a", 900))
    other = request("other", "b", tokens)
    shares.opens(other)
    assert claimed(shares, other, 100, waits_s=waits_s) == given


def test_only_who_has_a_claim_gets_memory_back():
    shares = MemoryShares(POOL)
    running(shares, request("large", "a", 900))
    chat, other = request("chat", "b", 40), request("other", "c", 300)
    for one in (chat, other):
        shares.opens(one)
    shares.lacks(other, 100)
    assert any(shares.wants_pass(1.0 + LOOK_S * step) for step in range(20))
    shares.lacks(other, 100)
    assert shares.given_back() == []
    shares.lacks(chat, 100)
    assert [one.id for one in shares.given_back()] == ["large"]


def test_while_there_is_a_claim_clients_above_their_shares_wait():
    shares = MemoryShares(POOL)
    running(shares, request("large", "a", 450))
    more, small, chat = request("m", "a", 100), request("s", "a", 20), request("chat", "c", 40)
    for one in (more, small, chat):
        shares.opens(one)
    assert not shares.must_wait(more)
    shares.lacks(chat, 100)
    times = [1.0 + LOOK_S * step for step in range(20)]
    assert any(map(shares.wants_pass, times))
    assert [shares.must_wait(one) for one in (more, small, chat)] == [True, False, False]
    shares.end_pass()
    assert not shares.must_wait(more)


def test_a_client_with_nothing_in_the_batch_never_waits_for_its_share():
    shares = MemoryShares(POOL)
    running(shares, request("large", "a", 900))
    huge, chat = request("huge", "b", 800), request("chat", "c", 40)
    for one in (huge, chat):
        shares.opens(one)
    shares.lacks(chat, 100)
    assert any(shares.wants_pass(1.0 + LOOK_S * step) for step in range(20))
    assert not shares.must_wait(huge)


def test_shares_follow_the_weights_of_tenants():
    shares = MemoryShares(POOL)
    running(shares, request("heavy", "a", 650, weight=3), request("light", "b", 300))
    chat = request("chat", "c", 40)
    shares.opens(chat)
    # Shares of 600, 200 and 200.
    assert claimed(shares, chat, 500) == ["light", "heavy"]


def test_a_tenant_above_its_share_claims_from_its_own_clients_only():
    shares = MemoryShares(POOL)
    running(
        shares,
        request("own", "t/a", 600, tenant="t"),
        request("other", "u/x", 510, tenant="u"),
    )
    chat = request("chat", "t/b", 40, tenant="t")
    shares.opens(chat)
    assert claimed(shares, chat, 700) == ["own"]


def test_a_tenant_within_its_share_gives_nothing_to_other_tenants():
    shares = MemoryShares(POOL)
    running(shares, request("own", "t/a", 400, tenant="t"), request("other", "u/x", 590))
    idle, chat = request("idle", "t/b", 40, tenant="t"), request("chat", "u/y", 40, tenant="v")
    for one in (idle, chat):
        shares.opens(one)
    # Tenants have 333 each: "t" is above with 401, and its client "t/a" above its 167.
    assert claimed(shares, chat, 450) == ["own", "other"]
    shares = MemoryShares(POOL)
    running(shares, request("own", "t/a", 300, tenant="t"), request("other", "u/x", 590))
    for one in (idle, chat):
        shares.opens(one)
    assert claimed(shares, chat, 950) == ["other"]


def test_a_batch_that_is_full_of_requests_alone_gives_no_claim():
    shares = MemoryShares(POOL)
    large, small = request("large", "a", 900), request("small", "a", 10)
    running(shares, large, small)
    chat = request("chat", "c", 40)
    shares.opens(chat)
    shares.lacks(chat, 100)
    shares.stops(small)  # memory is free again, and no request has found it short since
    assert not any(shares.wants_pass(1.0 + LOOK_S * step) for step in range(20))


def test_a_lack_that_ended_starts_the_time_anew():
    shares = MemoryShares(POOL)
    large = request("large", "a", 900)
    running(shares, large)
    chat = request("chat", "c", 40)
    shares.opens(chat)
    shares.lacks(chat, 100)
    assert not shares.wants_pass(1.0)
    shares.stops(large)  # memory is free
    assert not shares.wants_pass(1.0 + CLAIM_S)
    shares.starts(large)
    shares.lacks(chat, 100)
    looks = (2.0 + LOOK_S * step for step in range(20))
    assert next(filter(shares.wants_pass, looks)) == pytest.approx(2.0 + CLAIM_S)


class Engine:
    """A batch with its sums counted anew, and random events."""

    def __init__(self) -> None:
        self.rng = random.Random(3)
        self.shares = MemoryShares(POOL)
        self.waiting: list[Request] = []
        self.held: dict[Request, int] = {}
        self.decoding: set[Request] = set()
        self.arrived = 0

    def arrive(self) -> None:
        rng, self.arrived = self.rng, self.arrived + 1
        tenant = rng.choice("tuv")
        client, weight = f"{tenant}/{rng.choice('ab')}", rng.choice([1.0, 2.5])
        one = request(str(self.arrived), client, rng.randrange(1, 99), tenant=tenant, weight=weight)
        self.shares.opens(one)
        self.waiting.append(one)

    def start(self) -> None:
        if self.waiting:
            one = self.waiting.pop(self.rng.randrange(len(self.waiting)))
            self.shares.starts(one)
            self.held[one] = one.extend_tokens

    def decode(self) -> None:
        for one in self.held.keys() - self.decoding:
            self.shares.decodes(one)
            self.decoding.add(one)
            self.held[one] += 1
            break

    def step(self) -> None:
        self.shares.stepped(2)
        for one in self.decoding:
            self.held[one] += 2

    def stop(self) -> None:
        if self.held:
            one = self.rng.choice(list(self.held))
            del self.held[one]
            self.decoding.discard(one)
            self.shares.stops(one)
            if self.rng.random() < 0.5:
                self.shares.closes(one)
            else:
                self.waiting.append(one)

    def check(self) -> None:
        tenants = self.shares._tenants.members.values()
        for tenant in tenants:
            for member in (tenant, *tenant.clients.members.values()):
                own = [
                    tokens
                    for one, tokens in self.held.items()
                    if member.name in {one.client, one.tenant}
                ]
                assert self.shares._held(member) == sum(own)
        total = sum(tenant.share for tenant in tenants)
        assert total == pytest.approx(1.0 if tenants else 0.0)


def test_sums_of_members_are_those_of_their_requests():
    engine = Engine()
    acts = (engine.arrive, engine.start, engine.decode, engine.step, engine.stop, engine.stop)
    for _ in range(3000):
        engine.rng.choice(acts)()
        engine.check()
    while engine.held:
        engine.stop()
    for one in engine.waiting:
        engine.shares.closes(one)
    assert not engine.shares._tenants.members
    assert engine.shares._tenants.weight == 0.0
