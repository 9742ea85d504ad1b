"""`evenkeel replay`: prompts with the shared blocks of the trace, streams in chunks, keys of clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from evenkeel_cli.replay.clients import (
    ClientsError,
    assign_keys,
    headers_by_key,
    read_keys,
    read_weights,
)
from evenkeel_cli.replay.report import ReplayReport, make_report, seconds, table_of
from evenkeel_cli.replay.run import WORDS, Outcome, prompt_of
from evenkeel_cli.replay.sender import Answer, SenderError, _Reading, api_root
from evenkeel_contract.simulatedprompt import encode
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.traffic.summary import summarise
from evenkeel_simulator.traffic.workload import Call, Client
from rich.console import Console

from docs.generate.exampletrace import HABITS


def call(input_tokens: int, *keys: int) -> Call:
    segments = tuple(Segment(key, 512) for key in keys)
    return Call(input_tokens=input_tokens, output_tokens=1, max_output_tokens=1, prompt=segments)


def test_only_equal_blocks_give_equal_text() -> None:
    a = prompt_of(call(1200, 1, 2), "a")
    b = prompt_of(call(1200, 1, 2), "b")
    c = prompt_of(call(1200, 1, 3), "c")
    block = len(prompt_of(call(512, 1), ""))
    assert a[: 2 * block] == b[: 2 * block]
    assert a[2 * block :] != b[2 * block :]
    assert a[:block] == c[:block]
    assert a[block : 2 * block] != c[block : 2 * block]
    assert prompt_of(call(1200, 1, 2), "a") == a


def test_another_seed_gives_other_texts_of_the_same_length() -> None:
    one, other = (prompt_of(call(1200, 1, 2), "a", seed=seed) for seed in (0, 1))
    assert one[:40] != other[:40]
    assert one[-40:] != other[-40:]
    assert len(encode(one)) == len(encode(other)) == 1200


@pytest.mark.parametrize(("tokens", "keys"), [(1, ()), (512, (4,)), (1500, (4, 5)), (700, ())])
def test_a_prompt_has_the_length_of_the_trace(tokens: int, keys: tuple[int, ...]) -> None:
    assert len(encode(prompt_of(call(tokens, *keys), "x"))) == tokens


def test_every_word_is_one_token() -> None:
    assert {len(encode(word)) for word in WORDS} == {1}
    assert len(set(WORDS)) == len(WORDS)


STREAM = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b": a comment\n\n"
    b'data: {"choices":[{"delta":{"content":" h\xc3\xa9"}}]}\r\n\r\n'
    b'data: {"choices":[{"delta":{"content":"o"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
    b"data: [DONE]\n\n"
)


def read(*chunks: bytes) -> _Reading:
    ticks = iter(range(100))
    reading = _Reading(lambda: float(next(ticks)))
    for chunk in chunks:
        reading.feed(chunk)
    return reading


@pytest.mark.parametrize("at", range(0, len(STREAM), 7))
def test_a_stream_may_be_cut_anywhere(at: int) -> None:
    reading = read(STREAM[:at], STREAM[at:])
    assert reading.done
    assert reading.error is None
    assert reading.first_s == 0, "the clock was read once: at the first text, not at the role"
    assert reading.usage()["completion_tokens"] == 2


@pytest.mark.parametrize("member", ["content", "reasoning_content", "reasoning"])
def test_a_first_token_may_be_one_of_the_reasoning(member: str) -> None:
    reading = read(b'data: {"choices":[{"delta":{"%s":"a"}}]}\n' % member.encode())
    assert reading.first_s == 0


def test_an_answer_without_text_has_its_first_token_at_its_end() -> None:
    """A model may end at once. The replay ended with an assertion, after its last request."""
    reading = read(b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n', b"data: [DONE]\n")
    assert reading.done
    assert reading.first_s == 0


def test_an_error_event_is_an_error_with_its_message() -> None:
    reading = read(STREAM[:65], b'data: {"error":{"message":"replica lost","code":502}}\n\n')
    assert reading.error == "replica lost"
    assert not reading.done


@pytest.mark.parametrize(
    "data",
    [b"data: {", b"data: [1]\n", b"data: \xff\n", b'data: {"choices":3}\n', b"\x00" * 99],
)
def test_an_invalid_stream_has_no_answer(data: bytes) -> None:
    reading = read(data, b"\n\n")
    assert not reading.done
    assert reading.first_s is None
    assert reading.usage() == {}


def test_a_failed_request_counts_but_has_no_times() -> None:
    answer = Answer(sent_s=1.0, ended_s=2.0, first_token_s=1.5, error="stream")
    record = Outcome(program="p", number=0, client="c", due_s=0.5, answer=answer).record()
    assert (record.status, record.first_token_s, record.finished_s) == ("failed", None, None)


KEYS: Mapping[str, str] = {"a": "sk-a", "b": "sk-b", "c": "sk-c"}


def test_clients_get_the_key_of_their_name_and_others_an_unused_one() -> None:
    assigned = assign_keys(["z", "b", "b"], KEYS)
    assert assigned == {"b": "b", "z": "a"}
    headers = headers_by_key(assigned, KEYS)
    assert headers("b") == {"Authorization": "Bearer sk-b"}
    assert headers("z") == {"Authorization": "Bearer sk-a"}


def test_a_name_without_a_tenant_matches_the_client_of_any_tenant() -> None:
    keys = {"ads/chat": "sk-1", "search/rerank": "sk-2", "support/agent": "sk-3"}
    want = {"agent": "support/agent", "rerank": "search/rerank"}
    assert assign_keys(["rerank", "agent"], keys) == want


def test_a_name_of_clients_of_several_tenants_is_an_error() -> None:
    with pytest.raises(
        ClientsError, match="'chat' may be ads/chat or web/chat; use one of these names"
    ):
        assign_keys(["chat"], {"ads/chat": "sk-1", "web/chat": "sk-2"})


def test_more_clients_than_keys_is_an_error_with_a_remedy() -> None:
    with pytest.raises(
        ClientsError, match=r"4 clients need one API key each, and there are 3; .*--clients hash:3"
    ):
        assign_keys(["w", "x", "y", "z"], KEYS)


CASES: Mapping[str, tuple[str, str]] = {
    "a list": ("- a\n", "must be one mapping from client to API key"),
    "nothing": ("", "must be one mapping from client to API key"),
    "a number for a key": ("a: 1\n", "a: client and key must be strings; use quotes"),
    "a key that is not allowed in a header": ('a: "x\\ny"\n', "a: the key must be printable ASCII"),
    "invalid YAML": ("a: [\n", "keys.yaml:2: "),
    "an Evenkeel file with faults": ("kind: FairInferenceService\n", "spec: is required"),
}


@pytest.mark.parametrize(("text", "want"), CASES.values(), ids=CASES.keys())
def test_faults_of_a_file_of_keys(text: str, want: str, tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(ClientsError) as caught:
        read_keys(tmp_path / "keys.yaml")
    assert want in str(caught.value)


def test_keys_come_from_a_mapping_or_from_an_evenkeel_file(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"a": "sk-a"}')
    assert read_keys(tmp_path / "keys.json") == {"a": "sk-a"}
    quickstart = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
    keys = read_keys(quickstart)
    assert keys["search/rerank"] == "sk-search-rerank"
    of_trace = {name.client for name in HABITS}
    assert assign_keys(of_trace, keys) == {name: name.removeprefix("default/") for name in of_trace}


def test_weights_are_those_of_the_file_that_has_the_keys(tmp_path: Path) -> None:
    quickstart = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
    assert read_weights(quickstart, {"web": "ads/chat", "nightly": "research/notebook"}) == {
        "web": Client("web", "default/ads", 3, 4),
        "nightly": Client("nightly", "default/research", 1, 1),
    }
    (tmp_path / "keys.json").write_text('{"a": "sk-a"}')
    assert read_weights(tmp_path / "keys.json", {"a": "a"}) == {}


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("https://h/proxy", "https://h/proxy/v1"),
    ],
)
def test_an_endpoint_may_end_in_v1_or_not(url: str, want: str) -> None:
    assert api_root(url) == want


def test_an_endpoint_without_a_scheme_is_an_error() -> None:
    with pytest.raises(SenderError, match="'localhost:80' is not a URL like"):
        api_root("localhost:80")


@pytest.mark.parametrize(
    ("value", "want"),
    [(None, "–"), (0.0123, "12 ms"), (1.234, "1.23 s"), (104.04, "104.0 s")],
)
def test_times_are_short(value: float | None, want: str) -> None:
    assert seconds(value) == want


def outcome(client: str, *, due_s: float, **answer: Any) -> Outcome:
    return Outcome(program=client, number=0, client=client, due_s=due_s, answer=Answer(**answer))


def report_of(*outcomes: Outcome, max_concurrency: int = 0) -> tuple[ReplayReport, str]:
    """The report, and what the terminal shows of it."""
    report = make_report(
        outcomes,
        summary=summarise([one.record() for one in outcomes], 10.0),
        url="http://h:1",
        model="m",
        trace="t",
        speed=1.0,
        max_concurrency=max_concurrency,
        interrupted=False,
    )
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table_of(report, outcomes))
    return report, capture.get()


def test_a_report_has_the_failures_by_cause_and_by_client() -> None:
    fine = outcome("a", due_s=1.0, sent_s=1.0, ended_s=3.0, first_token_s=2.0, input_tokens=1000)
    lost = [
        outcome("b", due_s=1.0, sent_s=1.0, ended_s=2.0, error="502", detail=f"replica r{number}")
        for number in range(2)
    ]
    report, text = report_of(fine, *lost)
    assert (report.errors, report.errors_by_client) == ({"502": 2}, {"b": 2})
    assert "2 failed with 502: replica r1" in text
    assert "1 of 3 requests" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines()[1:3]}
    assert rows["a"][1:3] + rows["a"][-1:] == ["1", "0", "100"], "1,000 tokens in 10 seconds"
    assert rows["b"][1:3] + rows["b"][-1:] == ["2", "2", "0"]
    assert " late " not in text


@pytest.mark.parametrize(
    ("limit", "cause"), [(0, "this machine was too slow"), (4, "--max-concurrency or the speed")]
)
def test_a_report_names_the_largest_delay_before_a_request_was_sent(limit: int, cause: str) -> None:
    late = [
        outcome("a", due_s=due_s, sent_s=5.0, ended_s=6.0, first_token_s=5.5, input_tokens=10)
        for due_s in (5.5, 4.0, 2.5)
    ]
    report, text = report_of(*late, max_concurrency=limit)
    assert report.latest_s == 2.5
    assert f"up to 2.5 s late ({cause}" in text
