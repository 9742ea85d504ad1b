"""The book of reports: every change is reported once, and nothing is lost between two answers."""

from __future__ import annotations

from evenkeel_contract.key import UNKNOWN
from evenkeel_contract.reportbook import ReportBook
from evenkeel_contract.reports import REPORT_VERSION, ClientReport, ReportRequest, unserved
from evenkeel_fairshare.replica.contract import ClientDeficits
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs


def book(max_clients: int = 1000) -> ReportBook:
    return ReportBook(incarnation="one", policy="DLPM", max_clients=max_clients)


def ask(since: int = 0, incarnation: str = "one") -> ReportRequest:
    return ReportRequest(version=REPORT_VERSION, incarnation=incarnation, since=since)


def served(client: str, output: int) -> ClientReport:
    return structs.replace(unserved(client), output_tokens=output, service=2.0 * output)


def test_an_empty_replica_answers_with_nobody() -> None:
    answer = book().answer(ask())
    assert (answer.clients, answer.sequence, answer.since) == ((), 0, 0)
    assert (answer.incarnation, answer.policy) == ("one", "DLPM")


def test_totals_and_state_meet_in_one_report() -> None:
    reports = book()
    reports.update(
        {"s/a": served("s/a", 3)},
        {"s/a": ClientDeficits(-5.0, 7.0, 2), "t/b": ClientDeficits(1.0, 0.0, 1)},
    )
    a, b = reports.answer(ask()).clients
    assert (a.client, a.output_tokens, a.service, a.deficit, a.waiting) == ("s/a", 3, 6.0, -5.0, 2)
    assert (a.tenant_deficit, b.client, b.requests, b.waiting) == (7.0, "t/b", 0, 1)


def test_what_is_not_in_partial_news_did_not_change() -> None:
    reports = book()
    reports.update({"s/a": served("s/a", 3)}, {"s/a": ClientDeficits(-5.0, 7.0, 2)}, complete=False)
    before = reports.answer(ask()).sequence
    reports.update({"s/a": served("s/a", 4)}, {}, complete=False)
    [a] = reports.answer(ask(before)).clients
    assert (a.output_tokens, a.deficit, a.waiting, a.tenant_deficit) == (4, -5.0, 2, 7.0)
    before = reports.answer(ask(before)).sequence
    reports.update({}, {"s/a": ClientDeficits(-1.0, 7.0, 0)}, complete=False)
    [a] = reports.answer(ask(before)).clients
    assert (a.output_tokens, a.deficit, a.waiting) == (4, -1.0, 0)


def test_all_rows_of_an_answer_have_the_newest_deficit_of_their_tenant() -> None:
    reports = book()
    for client, of_tenant in (("s/a", 50.0), ("s/b", -100.0)):
        reports.update({}, {client: ClientDeficits(0.0, of_tenant, 1)}, complete=False)
    assert {one.tenant_deficit for one in reports.answer(ask()).clients} == {-100.0}


def test_a_report_counts_all_requests_and_those_without_a_client_key() -> None:
    reports = book()
    before = reports.answer(ask())
    assert (before.requests, before.unnamed) == (0, 0)
    rows = {"a": structs.replace(unserved("a"), requests=7)}
    reports.update(rows, {})
    unknown = {UNKNOWN.identity: structs.replace(unserved(UNKNOWN.identity), requests=2)}
    reports.update(rows | unknown, {})
    after = reports.answer(ask(2))
    assert (after.requests, after.unnamed) == (9, 2)


def test_only_what_changed_since_is_told() -> None:
    reports = book()
    reports.update({"a": served("a", 1), "b": served("b", 1)}, {})
    first = reports.answer(ask())
    reports.update({"a": served("a", 1), "b": served("b", 2)}, {})
    second = reports.answer(ask(first.sequence))
    assert [report.client for report in second.clients] == ["b"]
    assert second.since == first.sequence
    assert reports.answer(ask(second.sequence)).clients == ()


def test_a_change_of_state_without_service_is_a_change() -> None:
    reports = book()
    reports.update({"a": served("a", 1)}, {"a": ClientDeficits(5.0, 0.0, 1)})
    before = reports.answer(ask()).sequence
    reports.update({"a": served("a", 1)}, {"a": ClientDeficits(5.0, 0.0, 0)})
    [report] = reports.answer(ask(before)).clients
    assert report.waiting == 0


def test_a_client_that_left_unserved_is_told_to_have_left() -> None:
    reports = book()
    reports.update({}, {"a": ClientDeficits(5.0, 0.0, 1)})
    before = reports.answer(ask()).sequence
    reports.update({}, {})
    [report] = reports.answer(ask(before)).clients
    assert (report.client, report.waiting, report.deficit) == ("a", 0, 0.0)


def test_of_those_who_only_waited_the_longest_unchanged_make_room() -> None:
    reports = ReportBook(incarnation="one", policy="DLPM", max_unserved=2)
    reports.update({"served": served("served", 1)}, {"a": ClientDeficits(0.0, 0.0, 1)})
    for number in range(50):
        reports.update({"served": served("served", 1)}, {f"b{number}": ClientDeficits(0.0, 0.0, 1)})
    clients = reports.answer(ask()).clients
    assert {report.client for report in clients} == {"served", "b48", "b49"}
    # One that is served afterwards is reported whole, and stays.
    reports.update({"served": served("served", 1), "a": served("a", 5)}, {})
    for number in range(50):
        reports.update(
            {"served": served("served", 1), "a": served("a", 5)},
            {f"c{number}": ClientDeficits(0.0, 0.0, 1)},
        )
    told = {report.client: report.output_tokens for report in reports.answer(ask()).clients}
    assert told == {"served": 1, "a": 5, "c48": 0, "c49": 0}


def test_the_longest_unchanged_makes_room_and_not_the_first_to_come() -> None:
    reports = ReportBook(incarnation="one", policy="DLPM", max_unserved=2)
    waiting: dict[str, ClientDeficits] = {}
    for client, requests in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        waiting[client] = ClientDeficits(0.0, 0.0, requests)
        reports.update({}, waiting)
    assert {report.client for report in reports.answer(ask()).clients} == {"a", "c"}


def test_one_that_waited_and_is_served_makes_no_room() -> None:
    reports = ReportBook(incarnation="one", policy="DLPM", max_unserved=1)
    reports.update({}, {"a": ClientDeficits(0.0, 0.0, 1)})
    reports.update({"a": served("a", 5)}, {})
    before = reports.answer(ask()).sequence
    reports.update({"a": served("a", 5)}, {"b": ClientDeficits(0.0, 0.0, 1)})
    assert [report.client for report in reports.answer(ask(before)).clients] == ["b"]
    assert {report.client for report in reports.answer(ask()).clients} == {"a", "b"}


def test_an_asker_of_another_incarnation_is_told_everything() -> None:
    reports = book()
    reports.update({"a": served("a", 1)}, {})
    sequence = reports.answer(ask()).sequence
    answer = reports.answer(ask(sequence, incarnation="another"))
    assert (len(answer.clients), answer.since) == (1, 0)


def test_a_sequence_never_given_is_told_everything() -> None:
    reports = book()
    reports.update({"a": served("a", 1)}, {})
    for since in (99, -1):
        answer = reports.answer(ask(since))
        assert (len(answer.clients), answer.since) == (1, 0)


CHANGES = st.lists(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 5), min_size=1), max_size=12
)


@given(CHANGES, st.integers(1, 3), st.data())
def test_bounded_answers_add_up_to_the_whole(
    changes: list[dict[str, int]], limit: int, data: st.DataObject
) -> None:
    reports = book(limit)
    totals: dict[str, ClientReport] = {}
    known: dict[str, ClientReport] = {}
    sequence = 0
    for change in changes:
        for client, tokens in change.items():
            totals[client] = served(
                client, totals.get(client, unserved(client)).output_tokens + tokens
            )
        reports.update(totals, {})
        if data.draw(st.booleans()):
            answer = reports.answer(ask(sequence))
            assert len(answer.clients) <= limit
            known.update({report.client: report for report in answer.clients})
            sequence = answer.sequence
    while (answer := reports.answer(ask(sequence))).clients:
        known.update({report.client: report for report in answer.clients})
        sequence = answer.sequence
    assert {client: report.output_tokens for client, report in known.items()} == {
        client: total.output_tokens for client, total in totals.items()
    }
