"""The list of revocations: merging, ending, and whom it concerns."""

from __future__ import annotations

import pytest
from evenkeel_contract import revocations
from evenkeel_contract.revocations import (
    Revocation,
    RevocationList,
    RevocationMessage,
    RevocationsError,
    decode,
    encode,
    revocation_of,
)
from evenkeel_contract.signedkeys import SignedKey
from hypothesis import given
from hypothesis import strategies as st

NOW = 1000
KEY = SignedKey("s", "id-1", "ns", "ads", "ann", 900, 2000)


def listed(*subjects: str, revoked_s: int = NOW) -> RevocationList:
    found = RevocationList()
    found.merge([Revocation(one, revoked_s, 5000) for one in subjects], NOW)
    return found


@pytest.mark.parametrize("subject", ["id-1", "ns/ads/ann", "ns/ads"])
def test_a_key_is_revoked_by_its_id_its_client_and_its_tenant(subject: str) -> None:
    assert listed(subject).revokes(KEY)


@pytest.mark.parametrize("subject", ["id-2", "ns/ads/bob", "ns/search", "far/ads/ann", "ann"])
def test_revocations_of_others_do_not_concern_it(subject: str) -> None:
    assert not listed(subject).revokes(KEY)
    assert not RevocationList().revokes(KEY)


def test_a_key_that_was_created_after_its_client_was_revoked_is_valid() -> None:
    later = SignedKey("s", "id-2", "ns", "ads", "ann", NOW + 1, 2000)
    assert not listed("ns/ads/ann").revokes(later)
    assert listed("id-2").revokes(later)
    assert listed("ns/ads/ann", revoked_s=NOW + 1).revokes(later)


def test_revocations_end() -> None:
    found = RevocationList()
    assert len(found.merge([Revocation("a", 1, 1500), Revocation("b", 1, NOW)], NOW)) == 1
    assert [one.subject for one in found.expire(1500)] == ["a"]
    assert found.count == 0


def test_only_changes_grow_the_version() -> None:
    found = RevocationList()
    one = Revocation("a", 1, 1500)
    assert found.merge([one], NOW) == [one]
    version = found.version
    assert found.merge([one], NOW) == []
    assert found.version == version
    assert found.merge([Revocation("a", 5, 1400)], NOW) == [Revocation("a", 5, 1500)]
    assert found.version > version


def test_the_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocations, "MAX_REVOCATIONS", 2)
    found = listed("a", "b", "c")
    assert found.count == 2
    assert found.merge([Revocation("a", NOW + 1, 5000)], NOW)


_ONE = st.builds(
    Revocation, st.sampled_from(["a", "b", "n/t"]), st.integers(0, 9), st.integers(1001, 1009)
)


@given(st.lists(_ONE), st.lists(_ONE))
def test_the_order_of_merging_does_not_matter(
    some: list[Revocation], more: list[Revocation]
) -> None:
    one, other = RevocationList(), RevocationList()
    one.merge(some, NOW)
    one.merge(more, NOW)
    other.merge(more, NOW)
    other.merge(some, NOW)
    other.merge(some, NOW)
    assert set(one) == set(other)


def test_messages_come_back_and_others_are_refused() -> None:
    message = RevocationMessage((revocation_of("a", 5.5, ends_s=7.2),), 3, "r")
    assert decode(encode(message)) == message
    assert message.revocations[0] == Revocation("a", 5, 8)
    for data in (b"", b"{}", b'{"revocations":[{"subject":""}]}', b"\xff"):
        with pytest.raises(RevocationsError):
            decode(data)


def test_a_revocation_lasts_no_longer_than_the_keys_that_exist() -> None:
    message = RevocationMessage((Revocation("a", 100, 10**9), Revocation("b", 100, 110)))
    assert [one.until_s for one in message.lasting(50)] == [151, 110]
