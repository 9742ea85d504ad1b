"""Merging reports."""

from evenkeel_contract.reports import REPORT_VERSION, ClientReport, Report
from evenkeel_router.core import reported
from evenkeel_router.core.reported import Seen
from pytest import MonkeyPatch


def client(name: str, service: float = 0.0) -> ClientReport:
    return ClientReport(name, 0, 0, 0, service, service, service, 1, 0.0, 0.0, 0, 0)


def report(sequence: int, since: int, *clients: ClientReport) -> Report:
    return Report(REPORT_VERSION, "i", sequence, since, "DLPM", clients)


def test_news_replace_and_what_did_not_change_stays() -> None:
    seen = Seen("i")
    seen.merge(report(2, 0, client("a", 1), client("b", 2)), 10.0)
    seen.merge(report(3, 2, client("b", 5)), 11.0)
    assert {name: one.service for name, one in seen.clients.items()} == {"a": 1, "b": 5}
    assert (seen.sequence, seen.received_s, seen.policy) == (3, 11.0, "DLPM")


def test_a_complete_report_replaces_everything() -> None:
    seen = Seen("i")
    seen.merge(report(2, 0, client("a")), 10.0)
    seen.merge(report(9, 0, client("b")), 11.0)
    assert list(seen.clients) == ["b"]


def test_clients_of_a_replica_are_bounded(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(reported, "MAX_CLIENTS", 1)
    seen = Seen("i")
    seen.merge(report(2, 0, client("a"), client("b")), 10.0)
    seen.merge(report(3, 2, client("a", 7), client("b")), 10.0)
    assert {name: one.service for name, one in seen.clients.items()} == {"a": 7}
