"""Reports: there and back, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evenkeel_contract.reports import (
    REPORT_VERSION,
    ClientReport,
    Report,
    ReportError,
    ReportRequest,
    decode_report,
    decode_request,
    encode,
)


def client(**changes: Any) -> ClientReport:
    fields: dict[str, Any] = {
        "client": "n/t/c",
        "extend_tokens": 10,
        "cached_tokens": 5,
        "output_tokens": 7,
        "service": 24.0,
        "normalised": 12.0,
        "tenant_normalised": 24.0,
        "requests": 1,
        "deficit": -3.5,
        "tenant_deficit": 0.0,
        "waiting": 0,
        "running": 1,
    }
    return ClientReport(**{**fields, **changes})


def report(*clients: ClientReport, version: int = REPORT_VERSION) -> Report:
    return Report(
        version=version,
        incarnation="i",
        sequence=3,
        since=0,
        policy="dlpm",
        clients=clients,
    )


def test_a_report_and_its_question_survive_the_wire() -> None:
    answer = report(client(), client(client="n/t/d"))
    assert decode_report(encode(answer)) == answer
    question = ReportRequest(version=REPORT_VERSION, incarnation="", since=0)
    assert decode_request(encode(question)) == question


def test_a_later_version_is_refused_by_its_number() -> None:
    with pytest.raises(ReportError, match="version 2 is not supported; expected 1"):
        decode_report(encode(report(version=2)))


def test_fields_added_at_the_end_by_the_same_version_are_passed_over() -> None:
    values = msgspec.msgpack.decode(encode(report(client())))
    assert decode_report(msgspec.msgpack.encode([*values, "new"])) == report(client())


@pytest.mark.parametrize(
    "changes",
    [
        {"service": float("nan")},
        {"service": float("inf")},
        {"normalised": -1.0},
        {"deficit": float("-inf")},
        {"tenant_deficit": float("nan")},
        {"output_tokens": -1},
        {"waiting": -1},
    ],
    ids=str,
)
def test_figures_that_would_spoil_the_ledger_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ReportError, match="not a report"):
        decode_report(encode(report(client(**changes))))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93\x01\xa1\xff\x00",
        b"\x96\x01\xa1a\x00\x00\xa1p\xdd\xff\xff\xff\xff",
        b"\x97\x01\xa1a\x00\x00\xa1p\x90" + b"\x91" * 100_000,
        b"\x93\x01\xa1a" + b"\x91" * 100_000,
    ],
    ids=["nothing", "a reserved byte", "bad UTF-8", "a lie about length", "deep", "deep question"],
)
def test_garbage_is_the_named_error(data: bytes) -> None:
    for read in (decode_report, decode_request):
        with pytest.raises(ReportError):
            read(data)


def test_a_report_of_an_older_replica_has_no_quantum_and_no_latency() -> None:
    old = msgspec.msgpack.encode(
        [REPORT_VERSION, "i", 3, 0, "DLPM", [["n/t/c", 1, 2, 3, 4.0, 4.0, 4.0, 1, 0.0, 0.0, 0, 0]]]
    )
    answer = decode_report(old)
    assert answer.quantum == 0.0
    assert (answer.clients[0].itl_tokens, answer.clients[0].itl_s) == (0, 0.0)


def test_an_older_router_reads_a_report_with_newer_fields() -> None:
    data = msgspec.msgpack.decode(encode(report(client())))
    data.append("newer")
    data[5][0].append(1)
    assert decode_report(msgspec.msgpack.encode(data)) == report(client())
