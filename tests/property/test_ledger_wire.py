"""Ledgers over the wire: what one router knows, another knows after it, and garbage has a named error."""

from __future__ import annotations

import math

import pytest
from evenkeel_contract import ledgerwire
from evenkeel_contract.ledgerwire import LedgerMessageError, decode_delta, decode_digest
from evenkeel_contract.messages import pack
from evenkeel_fairshare.ledger import Compactor, Delta, Digest, ReplicaRow
from evenkeel_fairshare.ledger.account_deltas import RouterAccountDelta
from evenkeel_fairshare.ledger.merge_table import Rows
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.ledger_worlds import BOB, content, full_ledger, ledger


def sent(delta: Delta) -> Delta:
    """Through bytes and back, as routers do."""
    return decode_delta(ledgerwire.encode(delta))


def asked(digest: Digest) -> Digest:
    return decode_digest(ledgerwire.encode(digest))


def test_a_ledger_survives_the_wire_and_a_second_answer_is_empty():
    here, there = full_ledger(), ledger("router-2")
    there.merge(sent(here.delta(asked(there.digest()))))
    assert content(there) | {"adopted": 0} == content(here) | {"adopted": 0}
    assert there.served(BOB) == here.served(BOB)
    again = sent(here.delta(asked(there.digest())))
    assert (again.replica_accounts, again.closed_totals, again.demand) == ((), None, ())


def test_the_parts_of_a_changing_ledger_make_it_whole_in_any_order():
    here, there = full_ledger(), ledger("router-2")
    parts = []
    for part in here.parts():
        if not parts:
            here.received("alive", BOB, 1)
        parts.append(ledgerwire.frame(ledgerwire.encode(part)))
    assert len(parts) == len(here.replica_accounts) + 1
    for message in reversed(list(ledgerwire.unframe(b"".join(parts)))):
        there.merge(decode_delta(message))
    assert content(there) | {"adopted": 0} == content(here) | {"adopted": 0}
    assert there.members_of[here.router] == here.members


def test_an_account_compacted_between_two_parts_is_in_the_closed_totals():
    here, there = ledger("router-1"), ledger("router-2")
    for name in ("first", "second"):
        here.received(name, BOB, 9)
    parts = here.parts()
    first = next(parts)
    for name in ("first", "second"):
        here.closed(name)
    compactor = Compactor(here)
    assert compactor.compact(["router-1"], live=[], now_s=0)
    compactor.collect(["router-1"])
    assert not here.replica_accounts
    for part in (first, *parts):
        there.merge(part)
    assert there.served(BOB) == here.served(BOB) == 18


def test_only_the_last_piece_of_a_large_account_claims_to_be_complete():
    here, there = ledger("router-1"), ledger("router-2")
    names = [f"ns/t/{n}" for n in range(25)]
    here.observe("one", since=0, sequence=3, rows=[ReplicaRow(n, service=1) for n in names])
    for name in names:
        here.received("one", name, 2)
    here.drained("one")
    *parts, last, rest = here.parts(rows=10)
    assert (
        max(len(page.clients.names) for part in (*parts, last) for page in part.replica_accounts)
        == 10
    )
    for part in parts:
        there.merge(sent(part))
    assert there.digest().replica_accounts["one"].head == 0
    there.merge(sent(last))
    there.merge(sent(rest))
    assert content(there) | {"adopted": 0} == content(here) | {"adopted": 0}
    assert there.digest().replica_accounts == here.digest().replica_accounts


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 13])
def test_messages_that_are_cut_short_are_refused(cut):
    data = ledgerwire.frame(b"whole") + ledgerwire.frame(b"part")
    messages = ledgerwire.unframe(data[:cut])
    with pytest.raises(LedgerMessageError, match="cut short"):
        list(messages)


def test_what_happens_next_goes_over_the_wire_as_a_delta():
    here, there = full_ledger(), ledger("router-2")
    there.merge(sent(here.delta()))
    here.closed("alive")
    Compactor(here).compact(["router-1"], live=(), now_s=1)
    delta = sent(here.delta(asked(there.digest())))
    assert delta.closed_totals is not None and delta.closed_totals.base is not None
    there.merge(delta)
    assert content(there) | {"adopted": 0} == content(here) | {"adopted": 0}


@pytest.mark.parametrize("decode", [decode_delta, decode_digest])
@given(data=st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"\x03" + rest))
@examples(100)
def test_no_bytes_raise_anything_but_the_named_error(decode, data):
    with pytest.raises(LedgerMessageError):
        decode(data)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_a_damaged_answer_is_refused_or_still_an_answer(at, new):
    """Whatever gets through, merging it either works or says what is wrong; nothing else comes out."""
    data = ledgerwire.encode(full_ledger().delta())
    at %= len(data)
    try:
        delta = decode_delta(data[:at] + new + data[at + len(new) :])
    except LedgerMessageError:
        return
    try:
        ledger("reader").merge(delta)
    except ValueError as error:
        assert "cells" in str(error) or "finite" in str(error)


@pytest.mark.parametrize("head", [math.nan, math.inf, -math.inf])
def test_versions_that_are_not_finite_are_refused_and_change_nothing(head: float) -> None:
    """Infinity would hide all later changes of an account."""
    whole = full_ledger().delta()
    (account, *_), (demand, *_) = whole.replica_accounts, whole.demand
    (received, *_) = account.accounts
    accounts = account._replace(accounts=(received._replace(head=head),))
    there = ledger("router-2")
    for damaged in (
        whole._replace(replica_accounts=(account._replace(head=head),)),
        whole._replace(replica_accounts=(accounts,)),
        whole._replace(demand=(demand._replace(head=head),)),
    ):
        with pytest.raises(ValueError, match="not finite"):
            there.merge(sent(damaged))
    assert content(there) == content(ledger("router-2"))


@pytest.mark.parametrize("version", [3, 4])
def test_a_store_of_an_earlier_version_is_read(version: int) -> None:
    """Routers' rows had no base, and deltas of version 3 no revision."""
    here, there = full_ledger(), ledger("router-2")
    for part in here.parts():
        accounts = tuple(
            account._replace(accounts=tuple(map(_without_bases, account.accounts)))
            for account in part.replica_accounts
        )
        older = part._replace(replica_accounts=accounts)
        there.merge(decode_delta(pack(version, older[:-2] if version == 3 else older)))
    assert content(there) | {"adopted": 0} == content(here) | {"adopted": 0}


def _without_bases(account: RouterAccountDelta) -> RouterAccountDelta:
    names, cells = account.clients
    rows = (cells[at : at + 24] for at in range(0, len(cells), 32))
    return account._replace(clients=Rows(names, b"".join(rows)))


def test_a_base_survives_the_wire() -> None:
    here, there = ledger("router-1"), ledger("router-2")
    here.observe("one", since=0, sequence=1, rows=[ReplicaRow(BOB, service=30)])
    here.begins("one", BOB)
    here.received("one", BOB, 5)
    (account,) = here.delta().replica_accounts
    nothing_reported = account._replace(head=0.0, clients=Rows(), tenants=Rows())
    there.merge(sent(here.delta()._replace(replica_accounts=(nothing_reported,))))
    assert there.served(BOB) == 35


@pytest.mark.parametrize("decode", [decode_delta, decode_digest])
def test_another_version_is_refused_by_its_number(decode):
    with pytest.raises(LedgerMessageError, match="version 9 is not supported"):
        decode(b"\x09anything")
    with pytest.raises(LedgerMessageError, match="version missing is not supported"):
        decode(b"")
