"""Recordings, the fit of an engine, and who gains and loses: with recordings made by the simulator itself."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from evenkeel_cli.main import build
from evenkeel_contract.queueorder import RequestOrder
from evenkeel_contract.recording import FleetLine, Header, Line, RequestLine, encode_line
from evenkeel_laboratory.commands.planning import Change, changed, recorded_figures, today
from evenkeel_laboratory.experiments.engine_fit import FitError, fit_profile
from evenkeel_laboratory.experiments.recording import client_of, read_recording, records_of
from evenkeel_laboratory.experiments.setup import Setup, simulate
from evenkeel_laboratory.experiments.whatif import RunFigures, Served, figures, verdicts
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.traffic.traces import TraceError
from evenkeel_simulator.traffic.workload import Call, Program, Workload
from typer.testing import CliRunner

PROFILE = CostProfile(
    prefill_ms=10, prefill_token_ms=0.3, decode_ms=40, decode_request_ms=1,
    decode_kv_token_ms=0.002, kv_tokens=6000,
)  # fmt: skip
HEADER = Header(
    service="ns/svc", model="m", router="a", started_unix=1000.0, salt_id="s", block_tokens=64,
    scheduling={"replicaPolicy": "DLPM", "fleetPolicy": "D2LPM"}, weights={"ns/a": 1, "ns/b": 1},
)  # fmt: skip


def overload(requests: int = 200) -> Workload:
    """Two clients that ask for more than two replicas give."""
    programs = [
        Program(
            id=str(n),
            client=f"ns/{'ab'[n % 2]}/app",
            arrival_s=n * 0.04,
            calls=(
                Call(
                    input_tokens=200 + 7 * n % 100,
                    output_tokens=30 + 11 * n % 40,
                    max_output_tokens=70,
                    prompt=(Segment(n % 2, 64), Segment((n % 2, n), 64)),
                ),
            ),
        )
        for n in range(requests)
    ]
    return Workload("overload", programs)


def lines(workload: Workload, replicas: int = 2) -> list[Line]:
    """What routers would record of it."""
    records, _ = simulate(Setup(profile=PROFILE, replicas=replicas), workload)
    found: list[Line] = [
        HEADER,
        FleetLine(at_s=0.0, replicas=tuple(f"r{n}" for n in range(replicas))),
    ]
    for one in records:
        assert one.ttft_s is not None
        assert one.latency_s is not None
        parity, number = int(one.client == "ns/b/app"), int(one.id)
        found.append(
            RequestLine(
                arrival_s=one.arrival_s, client=one.client, api="/v1/completions", streamed=True,
                duration_s=one.latency_s, ttft_s=one.ttft_s, input_tokens=one.input_tokens,
                cached_tokens=one.cached_tokens, output_tokens=one.output_tokens,
                replica=f"r{one.replica}", blocks=(parity, 2 + number),
            )
        )  # fmt: skip
    return found


def written(path: Path, *given: Line) -> Path:
    path.write_bytes(b"".join(encode_line(line) for line in given))
    return path


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("plan") / "recording.jsonl", *lines(overload()))


def test_the_fit_finds_the_speed_of_the_engine_that_was_recorded(recording: Path) -> None:
    fit = fit_profile(read_recording(recording).requests)
    assert fit.median_error < 0.02
    assert abs(fit.total_error) < 0.02
    assert fit.profile.decode_ms == pytest.approx(PROFILE.decode_ms, rel=0.2)
    assert fit.profile.prefill_token_ms == pytest.approx(PROFILE.prefill_token_ms, rel=0.3)
    assert fit.peak_kv_tokens <= PROFILE.kv_tokens


def test_a_fit_needs_enough_streamed_answers(recording: Path) -> None:
    requests = read_recording(recording).requests
    with pytest.raises(FitError, match="has 9 streamed answers.*--profile"):
        fit_profile(requests[:9])


def run(*arguments: str) -> tuple[int, str]:
    ran = CliRunner().invoke(build(["plan"]), ["plan", *arguments], env={"COLUMNS": "400"})
    return ran.exit_code, ran.output


def change(tmp_path: Path, text: str) -> str:
    path = tmp_path / "change.yaml"
    path.write_text(text)
    return str(path)


def test_a_plan_says_who_gains_and_how_far_the_replay_is_from_the_recording(
    recording: Path, tmp_path: Path
) -> None:
    changed = change(tmp_path, "weights: {ns/a: 3}\n")
    code, output = run(
        f"--recording={recording}", f"--change={changed}", f"--out={tmp_path / 'out'}"
    )
    assert code == 0, output
    assert "ns/a/app gains: " in output
    assert "ns/b/app loses: " in output
    assert "fitted to 200 answers" in output
    assert (tmp_path / "out" / "plan.png").stat().st_size > 10_000
    code, output = run(f"--recording={recording}", f"--change={changed}", "--json", "--no-plots")
    plan = msgspec.json.decode(output)
    assert plan["share_error"] < 0.05
    assert abs(plan["ttft_error"]) < 0.05
    shares = {name: one["share"] for name, one in plan["changed"]["clients"].items()}
    assert shares["ns/a/app"] > 0.6
    assert sum(shares.values()) == pytest.approx(1.0)


def test_more_replicas_cost_gpu_time_and_shorten_the_wait(recording: Path, tmp_path: Path) -> None:
    changed = change(tmp_path, "replicas: 3\n")
    code, output = run(f"--recording={recording}", f"--change={changed}", "--json", "--no-plots")
    assert code == 0, output
    plan = msgspec.json.decode(output)
    assert plan["changed"]["gpu_s"] == pytest.approx(1.5 * plan["today"]["gpu_s"])
    assert {one["effect"] for one in plan["verdicts"]} == {"gains"}
    truth, _ = simulate(Setup(profile=PROFILE, replicas=3), overload())
    waits = sorted(one.ttft_s for one in truth if one.ttft_s is not None)
    assert plan["changed"]["ttft_p50_s"] == pytest.approx(waits[len(waits) // 2], rel=0.3)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("weights: {ns/c: 3}", "weights.ns/c: 'ns/c' is no client and no tenant; did you mean ns/"),
        ("weights: {ns/a: 0}", "weights['ns/a']: must be from 1"),
        ("weight: {}", "did you mean weights"),
        ("replicas: 0", "replicas: must be from 1"),
        ("replicaPolicy: DLP", "replicaPolicy: "),
        ("profile: nothing", "profile 'nothing' is neither one of"),
        ("{}", "changes nothing"),
        ("- a", "must hold one mapping"),
    ],
)
def test_a_change_that_is_invalid_names_field_and_remedy(
    recording: Path, tmp_path: Path, text: str, want: str
) -> None:
    changed = change(tmp_path, text + "\n")
    code, output = run(
        f"--recording={recording}", f"--change={changed}", "--profile=a10g-llama2-7b"
    )
    assert code == 2
    assert want in output


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b"{}\n", "line 1: "),
        (b'{"line":"request"}\n', "line 1: Object missing required field `arrival_s`"),
        (encode_line(HEADER).replace(b'"version":1', b'"version":9'), "version is 9"),
        (encode_line(HEADER), "holds no request that a replica served"),
        (encode_line(FleetLine(at_s=0, replicas=())), "stands before the header"),
    ],
)
def test_a_recording_that_is_invalid_names_line_and_field(
    tmp_path: Path, data: bytes, want: str
) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=want):
        read_recording(path)


def request(at_s: float, **changes: object) -> RequestLine:
    given: dict[str, object] = {
        "arrival_s": at_s, "client": "ns/a/x", "api": "/generate", "duration_s": 1.0, "replica": "r",
        "output_tokens": 5, "input_tokens": 10,
    }  # fmt: skip
    return RequestLine(**(given | changes))  # type: ignore[arg-type]


def test_the_recorded_order_is_replayed_and_may_change(tmp_path: Path) -> None:
    header = msgspec.structs.replace(HEADER, scheduling={"order": "LongestMatch"})
    recording = read_recording(written(tmp_path / "recording", header, request(1.0)))
    settings = today(recording, PROFILE, isolation=None)
    assert settings.setup.order == "LongestMatch"
    change = Change(order=RequestOrder.MATCH_OCTAVES)
    assert changed(settings, change).setup.order == "MatchOctaves"


def test_files_of_several_routers_are_put_on_one_clock(tmp_path: Path) -> None:
    later = msgspec.structs.replace(HEADER, router="b", started_unix=1010.0)
    failed = request(3.0, replica="", outcome="no_replica")
    path = written(tmp_path / "r.gz", HEADER, request(12.0), failed, later, request(1.0))
    path.write_bytes(gzip.compress(path.read_bytes()))
    found = read_recording(path)
    assert [one.arrival_s for one in found.requests] == [0.0, 1.0]
    assert found.failed == {"no_replica": 1}
    assert (found.header.router, found.replicas) == ("b", 1)


def test_the_number_of_replicas_is_that_of_most_of_the_time(tmp_path: Path) -> None:
    fleets = (
        FleetLine(at_s=0, replicas=("a",)),
        FleetLine(at_s=2, replicas=("a", "b", "c")),
        FleetLine(at_s=9, replicas=("a", "b")),
    )
    path = written(tmp_path / "r", HEADER, *fleets, request(0.0), request(10.0))
    found = read_recording(path)
    assert (found.replicas, sorted(found.replica_counts)) == (3, [1, 2, 3])


def test_blocks_of_a_prompt_never_exceed_its_tokens(tmp_path: Path) -> None:
    text = msgspec.structs.replace(HEADER, block_tokens=None)
    path = written(
        tmp_path / "r", text,
        request(0.0, input_tokens=450, blocks=(1, 2, 3, 4)),
        request(1.0, input_tokens=150, blocks=(1, 2, 3, 5)),
    )  # fmt: skip
    found = read_recording(path)
    assert found.block_tokens() == pytest.approx(600 / 9)
    first, second = (one.calls[0] for one in found.workload({}).programs)
    assert len(first.prompt) == 4
    assert [segment.key for segment in second.prompt] == [1, 2]
    assert first.prompt[:2] == second.prompt


def test_a_client_has_the_weight_of_its_name_or_its_tenant() -> None:
    weights = {"ns/a": 4.0, "ns/a/*": 2.0, "ns/a/x": 3.0}
    assert client_of("ns/a/x", weights).weight == 12.0
    assert client_of("ns/a/y", weights).weight == 8.0
    assert client_of("ns/b/y", weights).weight == 1.0


SLOW: Callable[[float, float], Served] = lambda ttft_s, tokens: Served(
    client="c", arrival_s=0.0, first_token_s=ttft_s, end_s=10.0, extend_tokens=0,
    output_tokens=int(tokens),
)  # fmt: skip


@pytest.mark.parametrize(
    ("after", "want"),
    [((1.0, 200), "gains"), ((1.0, 50), "loses"), ((1.0, 101), "keeps"), ((0.5, 100), "gains"),
     ((5.0, 100), "loses"), ((5.0, 200), "trades")],
)  # fmt: skip
def test_the_effect_on_a_client_follows_its_tokens_and_its_wait(
    after: tuple[float, float], want: str
) -> None:
    before, changed = (run_of(*one) for one in ((1.0, 100.0), after))
    (verdict,) = verdicts(before, before, changed)
    assert verdict.effect == want


def run_of(ttft_s: float, tokens: float) -> RunFigures:
    return figures([SLOW(ttft_s, tokens)], replicas=1, window_s=10.0, verdict="")


@pytest.mark.parametrize(
    ("recorded", "after", "want"),
    [
        ((1.0, 100.0), (1.0, 120.0), "c gains: "),
        # The replay had 20 % less than the fleet, so that 20 % more say nothing.
        ((1.0, 125.0), (1.0, 120.0), "c: no difference within the error of the model: "),
        ((1.0, 125.0), (1.0, 130.0), "c gains: "),
        ((1.5, 100.0), (0.8, 100.0), "c: no difference within the error of the model: "),
        ((1.0, 100.0), (1.0, 100.0), "c keeps: "),
    ],
)
def test_a_change_inside_the_error_of_the_model_is_no_difference(
    recorded: tuple[float, float], after: tuple[float, float], want: str
) -> None:
    (verdict,) = verdicts(run_of(*recorded), run_of(1.0, 100.0), run_of(*after))
    assert verdict.sentence.startswith(want)


def test_what_was_refused_and_given_up_is_counted_and_judged(tmp_path: Path) -> None:
    refused = request(1.0, replica="", outcome="rate_limited", output_tokens=0)
    left = request(2.0, outcome="client_gone", output_tokens=0)
    failed = request(3.0, replica="", outcome="unavailable", output_tokens=0)
    lines = (request(0.0), refused, left, left, failed, failed, request(4.0))
    found = read_recording(written(tmp_path / "r", HEADER, *lines))
    assert found.failed == {"client_gone": 2, "rate_limited": 1, "unavailable": 2}
    statuses = [one.status for one in records_of(found)]
    assert statuses == [
        "finished",
        "finished",
        "rejected",
        "unfinished",
        "unfinished",
        "failed",
        "failed",
    ]
    setup = today(found, PROFILE, isolation=None).setup
    assert recorded_figures(found, setup).verdict == "Held up: 2 of 4 requests failed."
