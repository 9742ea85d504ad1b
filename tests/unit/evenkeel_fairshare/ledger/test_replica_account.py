"""The account of a replica, sent in parts."""

from __future__ import annotations

from evenkeel_fairshare.ledger.router_account import RouterAccount


def test_only_the_last_part_of_a_router_account_has_its_head() -> None:
    account = RouterAccount(head=3.0)
    for version, client in enumerate(("ns/t/a", "ns/t/b", "ns/t/c"), start=1):
        account.clients.add(client, float(version), 1, 5.0)
    parts = list(account.delta("r", 0.0).split(1))
    assert [part.head for part in parts] == [0.0, 0.0, 3.0]
    copy = RouterAccount()
    for part in parts:
        copy.merge(part)
    assert (copy.head, sorted(copy.clients)) == (3.0, ["ns/t/a", "ns/t/b", "ns/t/c"])
