"""The pure parts of the GPU harness: the bundle, the plan of steps, closed loops, the fit and the comparison."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from evenkeel_cli.route.routefile import parse_route_file
from evenkeel_simulator.engine.profiles import PROFILES, CostProfile

from bench.closed_loop import LoopClient, LoopFigures, LoopSpec, read_loop
from bench.gpu import bundle, compare, fit, fleet
from bench.gpu.engine import EngineError
from bench.gpu.journal import Journal, read_records
from bench.gpu.loops import ClientFigures, alone, figures_of, scaled
from bench.gpu.profiling import OUTPUT_TOKENS, DecodePoint, PrefillPoint, grid
from bench.gpu.routed import route_document
from bench.gpu.steps import GROUPS, STEPS, WORKLOADS, engines_at, plan_of_steps

LOOPS = ("flood", "runner", "queue", "long")
PLAN: Mapping[str, Any] = {
    "kind": "plan",
    "scale": 1.0,
    "pace": 1.0,
    "pool_tokens": 40_000,
    "chunk_tokens": 4096,
    "max_running": 64,
}
PROFILE = CostProfile(
    prefill_ms=5.0,
    prefill_token_ms=0.025,
    prefill_attention_ms=4e-7,
    decode_ms=6.5,
    decode_request_ms=0.02,
    decode_kv_token_ms=5e-5,
    kv_tokens=40_000,
)


# The bundle


def test_versions_come_from_the_first_file_that_has_the_package() -> None:
    texts = ["a==1\nb-c==2 ; python_version > '3'\n", "a==3\nD_e==4\n"]
    assert bundle.pins(["a", "b-c", "d-e"], texts) == ["a==1", "b-c==2", "d-e==4"]


def test_a_package_without_a_version_is_named() -> None:
    with pytest.raises(bundle.BundleError, match="no version of zz"):
        bundle.pins(["a", "zz"], ["a==1\n"])


def test_the_bundle_has_the_kernels_of_one_gpu_and_no_other() -> None:
    wheel = "sglang_kernel-0.4.5-cp310-abi3-manylinux2014_x86_64.whl"
    assert bundle.is_taken(wheel, "sgl_kernel/sm90/common_ops.abi3.so")
    assert not bundle.is_taken(wheel, "sgl_kernel/sm100/common_ops.abi3.so")
    assert not bundle.is_taken(wheel, "sgl_kernel/flash_ops.abi3.so")
    assert bundle.is_taken("sglang-0.5.23-py3-none-any.whl", "sglang/srt/server_args.py")
    assert not bundle.is_taken("sglang-0.5.23-py3-none-any.whl", "sglang/test/run.py")


def test_a_model_may_be_registered_twice_in_the_fallback() -> None:
    text = '    AutoConfig.register("a", B)\nAutoModel.register(C, D, exist_ok=True)\nother.register(E)\n'
    assert bundle.with_newer_transformers(text) == (
        '    AutoConfig.register("a", B, exist_ok=True)\n'
        "AutoModel.register(C, D, exist_ok=True)\nother.register(E)\n"
    )


# Steps


def test_engines_one_after_another_start_once_each() -> None:
    pairs = plan_of_steps(["policies"], side_by_side=False)
    assert [engine for _, engine in pairs] == ["dlpm"] * 3 + ["fcfs"] * 3 + ["lpm"] * 3
    assert [step for step, _ in pairs] == ["flood", "runner", "queue"] * 3


def test_engines_side_by_side_finish_a_step_before_the_next() -> None:
    pairs = plan_of_steps(["policies"], side_by_side=True)
    assert [step for step, _ in pairs] == ["flood"] * 3 + ["runner"] * 3 + ["queue"] * 3
    assert plan_of_steps(["flood"], side_by_side=True, engines=["lpm"]) == [("flood", "lpm")]


def test_a_step_with_two_engines_of_its_own_has_the_card_alone() -> None:
    pairs = plan_of_steps(["long", "replicas"], side_by_side=True)
    assert engines_at(pairs, 0, side_by_side=True) == ("dlpm", "fcfs", "lpm")
    assert engines_at(pairs, 0, side_by_side=False) == ("dlpm",)
    assert engines_at(pairs, 2, side_by_side=True) == ("lpm", "dlpm")
    assert engines_at(pairs, 3, side_by_side=True) == ("dlpm", "dlpm-2")


def test_the_steps_of_a_call_fit_into_its_limit() -> None:
    assert set(GROUPS) == {"smoke", "policies"}
    for group in GROUPS.values():
        assert sum(STEPS[step].limit_s * len(STEPS[step].engines) for step in group) < 560


@pytest.mark.parametrize("name", LOOPS)
def test_a_workload_s_time_is_below_the_limit_of_its_step(name: str) -> None:
    spec = read_loop(WORKLOADS / f"{name}.yaml")
    seconds = spec.duration_s + (0 if name == "queue" else alone(spec).duration_s)
    assert seconds < STEPS[name].limit_s


def test_the_flood_s_prefixes_exceed_the_pool() -> None:
    rival = read_loop(WORKLOADS / "flood.yaml").clients[1]
    assert rival.prefixes * rival.shared_tokens > PLAN["pool_tokens"]
    assert {rival.prefix_of(number) for number in range(200)} == set(range(rival.prefixes))


def test_a_grid_only_has_points_that_fit_into_the_pool() -> None:
    points = grid(scale=1.0, pool_tokens=40_000, context_tokens=32_768, max_running=64)
    assert points.prompts[-1] == 16_384
    assert {batch for batch, _ in points.batches} == {1, 8, 32, 64}
    assert all(batch * (tokens + OUTPUT_TOKENS) <= 40_000 for batch, tokens in points.batches)


def test_a_toy_keeps_the_clients_and_has_fewer_tokens() -> None:
    spec = read_loop(WORKLOADS / "queue.yaml")
    small = scaled(spec, tokens=0.02, seconds=0.5, most_open=200)
    assert [client.open_requests for client in small.clients] == [4, 200]
    assert small.duration_s == 15
    rival = small.clients[1]
    assert (rival.input_tokens, rival.shared_tokens, rival.output_tokens) == (61, 60, 8)
    assert scaled(spec, tokens=1, seconds=1, most_open=10**9) == spec


def test_alone_is_the_first_client_for_a_third_of_the_time() -> None:
    spec = alone(read_loop(WORKLOADS / "flood.yaml"))
    assert [client.name for client in spec.clients] == ["measured"]
    assert spec.duration_s == 10


def loop_of(*clients: LoopClient) -> LoopSpec:
    return LoopSpec(about="", profile="", duration_s=10, warmup_s=2, clients=clients)


def test_figures_leave_out_the_warm_up() -> None:
    own = LoopFigures(
        finished=[1.0, 5.0, 9.0],
        tokens=[(1.0, 100), (5.0, 16)],
        gaps_s=[(1.0, 9.0), (4.0, 0.01), (5.0, 0.03)],
        ttfts_s=[(0.5, 7.0), (3.0, 0.2), (4.0, 0.4)],
        hits=[(1.0, 100, 100), (5.0, 100, 30)],
    )
    client = LoopClient(name="measured", open_requests=1, input_tokens=100, output_tokens=16)
    (row,) = figures_of({"measured": own}, loop_of(client))
    assert row.requests_per_s == pytest.approx(2 / 8)
    assert row.output_tokens_per_s == pytest.approx(2.0)
    assert row.itl_mean_ms == pytest.approx(20.0)
    assert row.ttft_p50_ms == pytest.approx(300.0)
    assert row.hit_rate == pytest.approx(0.3)


def test_a_client_that_got_nothing_has_no_times() -> None:
    client = LoopClient(name="measured", open_requests=1, input_tokens=8, output_tokens=1)
    (row,) = figures_of({}, loop_of(client))
    assert (row.ttft_p50_ms, row.itl_mean_ms, row.requests_per_s) == (None, None, 0.0)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "results.jsonl", {"step": "flood"})
    journal.note({"kind": "request", "client": "a"})
    with journal.path.open("a") as file:
        file.write('{"kind": "figu')
    (record,) = read_records([journal.path])
    assert (record["kind"], record["step"], record["client"]) == ("request", "flood", "a")


def test_a_router_reads_the_harness_s_document() -> None:
    document = route_document({"one": ("http://127.0.0.1:1", 2)}, ["measured", "rival"])
    route, faults = parse_route_file(json.dumps(document).encode(), "router.json")
    assert not faults
    assert route is not None
    assert [tenant.name for tenant in route.tenants] == ["measured", "rival"]
    assert route.replicas[0].reports == "tcp://127.0.0.1:2"


# Engines


ENGINE = """\
import http.server, os, sys
if "fallback" not in os.environ["PYTHONPATH"].split(":")[0]:
    sys.exit("no kernels")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404 if self.path == "/ready" else 200); self.end_headers(); self.wfile.write(b'{"version": "0.5.16"}')
    def do_POST(self):
        self.send_response(500 if "--schedule-policy=vtc" in sys.argv else 200)
        self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *a): pass
port = next(a.partition("=")[2] for a in sys.argv if a.startswith("--port="))
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


def engines_of(tmp_path: Path, notes: list[Mapping[str, Any]]) -> fleet.Engines:
    """Engines whose interpreter is a program that only runs with the fallback on its path."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{ENGINE}")
    program.chmod(0o755)
    return fleet.Engines(
        python=program,
        model=tmp_path,
        shape=fleet.shape_of(scale=1, pool_tokens=40_000),
        attempts=fleet.GPU_ATTEMPTS,
        work=tmp_path,
        site=tmp_path / "site",
        cpu=False,
        flags=(),
        note=notes.append,
        deadline_s=time.monotonic() + 60,
    )


def test_engines_start_in_the_attempt_that_works(tmp_path: Path) -> None:
    notes: list[Mapping[str, Any]] = []
    engines = engines_of(tmp_path, notes)
    try:
        with pytest.raises(EngineError, match="did not answer"):
            engines.start(["lpm", "vtc"])
        assert list(engines.urls) == ["lpm"]
        assert [(note["attempt"], note["engines"], note["status"]) for note in notes[-2:]] == [
            ("SGLang 0.5.16", ["lpm"], "ready"),
            ("SGLang 0.5.16", ["vtc"], "failed"),
        ]
        assert len(notes) == 2 * 2 + 2  # both failed in two attempts
        with pytest.raises(EngineError, match="did not answer"):
            engines.start(["vtc"])
        assert len(notes) == 6  # it is not tried again
        later = engines_of(tmp_path, notes)
        later.recover()
        assert later.urls == engines.urls
        assert later.first == 2
        another = engines_of(tmp_path, notes)
        another.first = 3
        another.recover()
        assert (another.urls, another.first) == ({}, 3)
        with pytest.raises(OSError):
            urllib.request.urlopen(next(iter(engines.urls.values())))
    finally:
        engines.stop("lpm")


# The fit and the comparison


def records_of(profile: CostProfile) -> list[dict[str, Any]]:
    """What the step `profile` measures on an engine of exactly this profile."""
    points: list[msgspec.Struct] = []
    for tokens in (256, 1024, 4096, 8192, 16_384):
        chunks, total, attention = fit.chunk_terms(tokens, PLAN["chunk_tokens"])
        ms = profile.prefill_ms * chunks + profile.prefill_token_ms * total
        ms += profile.prefill_attention_ms * attention
        points.append(PrefillPoint(tokens=tokens, ms=(ms, ms, 2 * ms)))
    for batch, context in ((1, 512), (8, 512), (64, 512), (1, 8192), (8, 4096)):
        ms = profile.decode_ms + batch * profile.decode_request_ms
        ms += batch * context * profile.decode_kv_token_ms
        points.append(DecodePoint(batch=batch, context=context, ms=(ms, ms, 9 * ms)))
    return [dict(PLAN), *(msgspec.to_builtins(point) for point in points)]


@pytest.mark.parametrize("profile", [PROFILE, PROFILES["a100-llama3.1-8b"]], ids=["h100", "a100"])
def test_a_fit_finds_the_profile_that_made_its_points(profile: CostProfile) -> None:
    found = fit.fit(records_of(profile))
    for name in profile.__struct_fields__:
        if name.endswith("_ms") and getattr(profile, name):
            assert getattr(found.profile, name) == pytest.approx(getattr(profile, name), rel=1e-6)
    assert found.profile.kv_tokens == 40_000
    assert found.rms() < 1e-9


def test_a_prompt_in_chunks_costs_what_the_simulator_charges() -> None:
    spec = loop_of(
        LoopClient(name="measured", open_requests=1, input_tokens=10_000, output_tokens=1)
    )
    (row,) = compare.simulated(spec, "fcfs", PROFILE, PLAN)
    chunks, tokens, attention = fit.chunk_terms(10_000, PLAN["chunk_tokens"])
    ms = chunks * PROFILE.prefill_ms + tokens * PROFILE.prefill_token_ms
    ms += attention * PROFILE.prefill_attention_ms
    assert (chunks, tokens) == (3, 10_000)
    assert row.ttft_p50_ms == pytest.approx(ms, rel=1e-6)


def test_no_coefficient_of_a_fit_is_negative() -> None:
    assert fit.non_negative([(1, 1), (1, 2), (1, 3)], [3.0, 2.0, 1.0])[1] == 0.0
    assert fit.non_negative([(1, 1), (1, 2)], [3.0, 4.0]) == pytest.approx([2.0, 1.0])


def test_a_point_whose_tokens_were_read_at_once_is_left_out() -> None:
    nothing = DecodePoint(batch=8, context=1024, ms=(0.004, 0.003, 7.0))
    found = fit.fit([*records_of(PROFILE), msgspec.to_builtins(nothing)])
    assert found.profile.decode_ms == pytest.approx(PROFILE.decode_ms, rel=1e-6)
    assert found.left_out == (nothing,)
    assert "decode 8 x 1024" in fit.table_of(found)


def test_a_fit_without_points_names_the_step() -> None:
    with pytest.raises(fit.FitError, match="run the step `profile`"):
        fit.fit([dict(PLAN)])


def measured_by(profile: CostProfile, *, engines: Sequence[str]) -> list[dict[str, Any]]:
    """The records of `runner`, as if the simulator were the engine."""
    plan = {**PLAN, "pace": 0.3}
    specs = compare.specs_of(plan, ["runner", "runner-alone"])
    return [
        plan,
        *(
            {"kind": "figures", "scene": scene, "engine": engine, **msgspec.to_builtins(row)}
            for scene, spec in specs.items()
            for engine in engines
            for row in compare.simulated(spec, engine, profile, plan)
        ),
    ]


def test_a_simulator_of_the_right_profile_does_not_differ() -> None:
    rows = compare.compared(measured_by(PROFILE, engines=["fcfs", "dlpm"]), PROFILE)
    assert {row.ratio.engine for row in rows} == {"fcfs", "dlpm"}
    assert any(row.ratio.value is not None for row in rows)
    assert not any(row.differs for row in rows)


def test_a_ratio_that_differs_by_more_than_a_fifth_is_marked() -> None:
    records = measured_by(PROFILE, engines=["dlpm"])
    slow_prompts = msgspec.structs.replace(PROFILE, prefill_token_ms=0.25)
    rows = compare.compared(records, slow_prompts)
    assert any(row.differs for row in rows)
    assert "| differs |" in compare.table_of(rows)
    one = compare.Ratio(scene="s", engine="e", name="n", value=1.0)
    assert not compare.Row(ratio=one, simulated=1.19).differs
    assert compare.Row(ratio=one, simulated=1.21).differs
    assert compare.Row(ratio=one, simulated=None).differs


def test_figures_of_clients_survive_the_journal(tmp_path: Path) -> None:
    row = ClientFigures(
        client="measured",
        requests_per_s=1.0,
        output_tokens_per_s=2.0,
        ttft_p50_ms=None,
        ttft_p99_ms=None,
        itl_mean_ms=3.0,
        itl_p99_ms=4.0,
        hit_rate=0.5,
    )
    journal = Journal(tmp_path / "results.jsonl", {"scene": "flood", "engine": "lpm"})
    journal.note({"kind": "figures", **msgspec.to_builtins(row)})
    assert compare.scenes_of(read_records([journal.path])) == {("flood", "lpm"): (row,)}
