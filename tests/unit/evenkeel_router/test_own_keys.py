"""Which keys a client has that it creates itself: at most N, without a list of them."""

from __future__ import annotations

import pytest
from evenkeel_contract.revocations import Revocation, RevocationList
from evenkeel_contract.signedkeys import SelfServiceConfig
from evenkeel_router.api.own_keys import VARIANTS, KeyUses, OwnKey, OwnKeys, is_own
from hypothesis import given
from hypothesis import strategies as st

NOW_S = 1_800_000_000.0
HOUR_S = 3600
POLICY = SelfServiceConfig(keys_per_client=2, lifetime_s=10 * HOUR_S)


def keys(revocations: RevocationList | None = None, identity: str = "ns/acme/ann") -> OwnKeys:
    return OwnKeys(POLICY, revocations or RevocationList(), identity)


def current(found: OwnKeys, number: int = 1, now_s: float = NOW_S) -> OwnKey:
    key = found.current(number, now_s)
    assert key is not None
    return key


def revoked(*subjects: str, at_s: float = NOW_S) -> RevocationList:
    listed = RevocationList()
    listed.merge([Revocation(one, int(at_s), int(at_s) + 100 * HOUR_S) for one in subjects], at_s)
    return listed


def test_routers_that_share_nothing_give_the_same_key() -> None:
    assert current(keys()) == current(keys())
    assert current(keys()).id != current(keys(identity="ns/acme/bob")).id
    assert current(keys()).id != current(keys(), 2).id
    assert is_own(current(keys()).id)
    assert not is_own("AbCdEfGhIjKl")


@given(st.integers(0, 400), st.integers(1, 2))
def test_a_new_key_lasts_half_a_lifetime_to_a_whole_one(minutes: int, number: int) -> None:
    now_s = NOW_S + 60 * minutes
    key = current(keys(), number, now_s)
    assert key.issued_s <= now_s
    assert 5 * HOUR_S <= key.expires_s - now_s <= 10 * HOUR_S
    assert key.expires_s - key.issued_s == 10 * HOUR_S


@given(st.lists(st.tuples(st.integers(0, 30 * 60), st.integers(1, 2)), max_size=40))
def test_a_client_has_at_most_its_numbers_and_their_predecessors(
    asked: list[tuple[int, int]],
) -> None:
    given_ = [current(keys(), number, NOW_S + 60 * minutes) for minutes, number in asked]
    for minutes, _ in asked:
        now_s = NOW_S + 60 * minutes
        live = {one.id for one in given_ if one.issued_s <= now_s < one.expires_s}
        assert len(live) <= 2 * POLICY.keys_per_client
        assert live <= {one.id for one in keys().all(now_s)}


def test_a_revoked_key_has_a_successor_and_the_other_numbers_stay() -> None:
    first, second = current(keys()), current(keys(), 2)
    after = keys(revoked(first.id))
    assert current(after).id not in (first.id, second.id)
    assert current(after, 2) == second
    listed = {one.id: one.revoked for one in after.all(NOW_S)}
    assert (listed[first.id], listed[current(after).id]) == (True, False)


def test_the_revocations_of_a_client_are_bounded() -> None:
    ids: list[str] = []
    while (key := keys(revoked(*ids) if ids else None).current(1, NOW_S)) is not None:
        ids.append(key.id)
    assert len(ids) == VARIANTS
    later = keys(revoked(*ids)).next_s(1, NOW_S)
    assert current(keys(revoked(*ids)), now_s=later).id not in ids
    assert keys(revoked(*ids)).current(1, later - 1.0) is None


@pytest.mark.parametrize("subject", ["ns/acme/ann", "ns/acme"])
def test_after_a_revocation_of_the_client_new_keys_are_valid(subject: str) -> None:
    listed = revoked(subject)
    key = current(keys(listed))
    assert key.issued_s > NOW_S
    assert not listed.revokes_identity("ns/acme/ann", key.issued_s)
    assert listed.revokes_identity("ns/acme/ann", current(keys()).issued_s)
    # Its predecessor ended with the revocation, which came after all of that period's keys.
    states = [one.revoked for one in keys(listed).all(NOW_S) if one.number == 1]
    assert states == [True, False]


def test_a_client_finds_only_keys_of_its_own_that_may_be_valid() -> None:
    found, key = keys(), current(keys())
    assert found.find(key.id, NOW_S) == key
    owner, number, period, _ = key.id.split(".")
    others = [
        current(keys(identity="ns/acme/bob")).id,
        f"{owner}.3.{period}.0",
        f"{owner}.{number}.{int(period) - 2}.0",
        f"{owner}.{number}.{period}.1",
        f"{owner}.{number}.-1.0",
        f"{owner}.{number}.²²²²²².0",
        f"{owner}.{number}.{'9' * 5000}.0",
        "ns/acme",
        "",
    ]
    assert [one for one in others if found.find(one, NOW_S) is not None] == []


def test_uses_of_keys_are_remembered_within_bounds() -> None:
    uses = KeyUses()
    assert uses.last_s("a") is None
    uses.used("a", 1.0)
    for number in range(20_000):
        uses.used(str(number), 2.0)
    assert (uses.last_s("a"), uses.last_s("0"), uses.last_s("19999")) == (None, 2.0, 2.0)
