"""The load generators of others (`bench.others`): their commands, what their reports say, and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from evenkeel_cli.manifest import parse_manifest

from bench.others.__main__ import FLOOD, RESULTS, fleet_file, kept
from bench.others.page import SETUPS, Facts, page
from bench.others.tools import TOOLS, Result, Target
from bench.versus.workloads import BIG, SMALL

FACTS = Facts(
    version="1.2",
    commit="abc",
    date="2026-11-27",
    load_before=0.5,
    load_after=1.5,
    flood_answers_per_s={"alone": 0.0, "stock": 3.8, "evenkeel": 3.7},
)


def result(ttft_ms: float) -> Result:
    return Result(
        requests=24,
        errors=1,
        ttft_p50_ms=ttft_ms,
        ttft_p95_ms=2 * ttft_ms,
        itl_p50_ms=20.0,
        latency_p50_ms=1500.0,
    )


@pytest.mark.parametrize("name", SETUPS)
def test_the_fleet_of_each_setup_is_a_valid_file(name: str) -> None:
    manifest = parse_manifest(fleet_file(SETUPS[name]).encode(), name)
    scheduling = manifest.service.spec.scheduling
    assert scheduling.replica_policy.value == SETUPS[name].replica_policy
    assert scheduling.fleet_policy.value == SETUPS[name].fleet_policy
    keys = dict(manifest.api_keys())
    assert keys == {f"{team}/app": f"sk-{team}" for team in (SMALL, BIG)}


def test_the_flood_is_the_other_tenant_s_alone() -> None:
    assert {crowd.team for crowd in FLOOD.crowds} == {BIG}


@pytest.mark.parametrize("name", TOOLS)
def test_a_program_sends_to_the_target_with_its_key(name: str, tmp_path: Path) -> None:
    target = Target(
        url="http://127.0.0.1:9",
        model="fair",
        key="sk-small",
        tokenizer=tmp_path / "tokenizer",
        folder=tmp_path,
    )
    said = " ".join(TOOLS[name].words(target))
    said += "".join(path.read_text() for path in tmp_path.glob("*.json"))
    for wanted in (target.url, target.key, target.model, str(target.tokenizer), str(tmp_path)):
        assert wanted in said


def test_inference_perf_reads_its_load_from_a_file_of_yaml(tmp_path: Path) -> None:
    target = Target(url="u", model="m", key="k", tokenizer=tmp_path, folder=tmp_path)
    flag, path = TOOLS["inference-perf"].words(target)
    assert flag == "--config_file"
    config = json.loads(Path(path).read_text())
    assert config["load"]["stages"] == [{"num_requests": 24, "concurrency_level": 4}]


def test_every_program_has_a_report_of_each_setup() -> None:
    found = kept(RESULTS)
    assert found.keys() == TOOLS.keys()
    for _, results in found.values():
        assert results.keys() == SETUPS.keys()
        for one in results.values():
            assert (one.requests, one.errors) == (24, 0)
            assert 0 < one.ttft_p50_ms <= one.ttft_p95_ms <= one.latency_p50_ms * 2


def test_the_page_compares_a_flood_with_none() -> None:
    results = {"alone": result(100.0), "stock": result(7000.0), "evenkeel": result(250.0)}
    text = page({"aiperf": (FACTS, results)})
    assert "70 times as long with round robin + FCFS, and 2.5 times as long" in text
    assert "3.8 answers per second with the former and 3.7 with the latter (-3 %)" in text
    assert "| TTFT p50 | p95 of 24 |" in text
    assert (
        "| AIPerf | a flood, round robin + FCFS | 24 of 25 | 7.0 s | 14.0 s | 20 ms | 1.5 s | 3.8 |"
        in text
    )
    assert "| AIPerf | no flood | 24 of 25 | 100 ms | 200 ms | 20 ms | 1.5 s | – |" in text


def test_the_page_in_the_repository_is_that_of_the_reports() -> None:
    assert (RESULTS / "others.md").read_text(encoding="utf-8") == page(kept(RESULTS))
