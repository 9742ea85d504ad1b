import csv
from pathlib import Path

import pytest
from evenkeel_simulator.traffic.records import Record, write_csv
from evenkeel_simulator.traffic.service_difference import service_difference
from evenkeel_simulator.traffic.summary import completion, program_latencies, summarise


def record(name: str, **changes: object) -> Record:
    fields: dict[str, object] = {
        "id": name,
        "program": name,
        "client": "a",
        "replica": 0,
        "status": "finished",
        "arrival_s": 0.0,
        "admitted_s": 1.0,
        "first_token_s": 2.0,
        "finished_s": 10.0,
        "input_tokens": 100,
        "cached_tokens": 40,
        "extend_tokens": 60,
        "output_tokens": 20,
        "retractions": 0,
    }
    return Record(**{**fields, **changes})  # type: ignore[arg-type]


def ended(name: str, status: str) -> Record:
    return record(
        name,
        status=status,
        admitted_s=None,
        first_token_s=None,
        finished_s=None,
        cached_tokens=0,
        extend_tokens=0,
        output_tokens=0,
    )


def test_service_is_what_was_computed_and_requested_is_what_was_asked_for() -> None:
    summary = summarise([record("r1"), record("r2", cached_tokens=0, extend_tokens=100)], 10.0)
    client = summary.clients["a"]
    assert client.service == 60 + 100 + 2 * 40
    assert client.requested == 2 * (100 + 40)
    assert client.hit_rate == summary.hit_rate == 0.2
    assert summary.throughput_tokens_per_s == 24.0
    assert summary.service_rate == 28.0
    assert summary.output_tokens_per_s == 4.0


def test_the_papers_jain_is_taken_over_the_time_when_all_clients_were_there() -> None:
    # b is there from 4 s to 8 s only, and gets in it what a gets in it.
    spread = record("r1", first_token_s=0.0, finished_s=12.0, arrival_s=0.0)
    short = record(
        "r2",
        client="b",
        arrival_s=4.0,
        first_token_s=4.0,
        finished_s=8.0,
        input_tokens=20,
        output_tokens=(140 // 3 - 20) // 2,
    )
    assert summarise([spread, short], 12.0).jain_index_service_rate == pytest.approx(1.0, abs=1e-3)
    greedy = record("r3", client="b", arrival_s=4.0, first_token_s=4.0, finished_s=8.0)
    rates = summarise([spread, greedy], 12.0).jain_index_service_rate
    assert rates == pytest.approx(0.8, abs=0.01)


def test_a_program_lasts_from_its_first_arrival_to_its_last_end() -> None:
    calls = [
        record("p.0", program="p", arrival_s=1.0, finished_s=5.0),
        record("p.1", program="p", arrival_s=5.0, finished_s=9.5),
        record("q", arrival_s=2.0, finished_s=4.0),
    ]
    assert program_latencies(calls) == [8.5, 2.0]


def test_inter_token_latency_is_a_mean_over_requests_with_two_tokens_or_more() -> None:
    calls = [
        record("long", first_token_s=1.0, finished_s=5.0, output_tokens=5),
        record("quick", first_token_s=1.0, finished_s=1.5, output_tokens=2),
        record("one", first_token_s=3.0, finished_s=3.0, output_tokens=1),
    ]
    client = summarise(calls, 5.0).clients["a"]
    assert (client.itl_p50_s, client.itl_p99_s) == (
        pytest.approx(0.5, abs=0.26),
        pytest.approx(1.0, abs=0.01),
    )
    assert summarise([calls[2]], 5.0).clients["a"].itl_p99_s is None


def test_what_was_never_served_is_counted_and_spoils_nothing(tmp_path: Path) -> None:
    records = [ended("r1", "refused"), ended("r2", "rejected")]
    summary = summarise(records, 0.0)
    assert (summary.requests, summary.finished, summary.refused, summary.rejected) == (2, 0, 1, 1)
    assert summary.clients["a"].ttft_p50_s is None
    assert summary.clients["a"].program_latency_p99_s is None
    assert summary.throughput_tokens_per_s == summary.hit_rate == 0.0
    write_csv(records, tmp_path / "requests.csv")
    rows = list(csv.DictReader((tmp_path / "requests.csv").read_text().splitlines()))
    assert [row["status"] for row in rows] == ["refused", "rejected"]
    assert rows[0]["finished_s"] == ""


def test_a_rejected_client_counts_in_jain_s_index_unless_it_fits_nowhere() -> None:
    for status, want in (("rejected", 0.5), ("refused", 1.0)):
        records = [record("r1"), ended("r2", status)._replace(client="b")]
        summary = summarise(records, 10.0)
        assert summary.jain_index == summary.jain_index_service_rate == want


def test_a_program_with_a_call_that_was_not_served_has_no_latency() -> None:
    calls = [record("p.0", program="p"), ended("p.1", "refused")._replace(program="p")]
    assert program_latencies(calls) == []


def test_the_tables_windows_follow_the_arrivals() -> None:
    served = [
        record(f"r{n}", client="ab"[n % 2], arrival_s=t, first_token_s=t + 1, finished_s=t + 9 + n)
        for n, t in enumerate(range(0, 310, 10))
    ]
    rejected = ended("last", "rejected")._replace(arrival_s=600.0)
    of_600_s = service_difference([completion(record) for record in served])
    for summary in (
        summarise([*served, rejected], 610.0),
        summarise(served, 610.0, duration_s=600.0),
    ):
        assert summary.service_difference == of_600_s
    # Cut to the last one served, the windows would be others.
    assert summarise(served, 610.0).service_difference.avg > 1.5 * of_600_s.avg


def test_clients_that_are_numbers_are_sorted_as_numbers() -> None:
    names = ["10", "9", "web"]
    summary = summarise([record(name, client=name) for name in names], 10.0)
    assert list(summary.clients) == ["web", "9", "10"]
