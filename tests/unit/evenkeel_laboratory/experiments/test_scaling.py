"""The scaling laboratory: fleets whose size a scaler decides, and the operator's own core among the scalers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from evenkeel_laboratory.commands import autoscale
from evenkeel_laboratory.commands.scalers import (
    OperatorScaler,
    PanicScaler,
    QueueScaler,
    StaticScaler,
)
from evenkeel_laboratory.experiments.fleet_watch import Observation, within_share
from evenkeel_laboratory.experiments.scaling import ScaledFleet, ScalingFigures, run_scaled
from evenkeel_laboratory.experiments.setup import Setup
from evenkeel_router.ledger.totals import DemandMeter
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.workload import Call, Client, Program, Workload

from bench.scaling import MANIFEST

SERVICE = (
    MANIFEST.replace("queueTime: 1s, ttftP95: 5s", "servicePerReplica: 1000, queueTime: 2s")
    .replace("maxReplicas: 12", "maxReplicas: 6")
    .replace("25%", "50%")
)
PROFILE = CostProfile(
    prefill_ms=5, prefill_token_ms=0.1, decode_ms=20, decode_request_ms=1,
    decode_kv_token_ms=0.0, kv_tokens=4000,
)  # fmt: skip


def steady(rate: float, seconds: float, clients: int = 4) -> Workload:
    """Equal requests at equal distances."""
    call = Call(input_tokens=100, output_tokens=50, max_output_tokens=50)
    programs = [
        Program(str(n), f"ns/team/{n % clients}", n / rate, (call,))
        for n in range(int(rate * seconds))
    ]
    return Workload("steady", programs)


class Planned:
    """Decides by a table of times, and keeps what it saw."""

    name, interval_s = "planned", 10.0

    def __init__(self, *steps: tuple[float, int]) -> None:
        self.steps = steps
        self.seen: list[Observation] = []

    def decide(self, seen: Observation) -> int:
        self.seen.append(seen)
        return [count for at_s, count in self.steps if at_s <= seen.now_s][-1]


def run(
    scaler: Planned | StaticScaler, work: Workload, *, replicas: int = 1, startup_s: float = 30.0
) -> tuple[ScalingFigures, list[Record]]:
    figures, _, records = run_scaled(
        Setup(profile=PROFILE, replicas=replicas).fleet(), work, scaler=scaler,
        meter=DemandMeter(), startup_s=startup_s, threshold_s=1.0,
    )  # fmt: skip
    return figures, records


def test_a_replica_serves_after_its_start_up_and_costs_from_its_start() -> None:
    scaler = Planned((0, 1), (50, 2))
    figures, records = run(scaler, steady(4, 200))
    assert {one.status for one in records} == {"finished"}
    first = min(one.arrival_s for one in records if one.replica == 1)
    assert 80 <= first < 81
    assert figures.gpu_s == pytest.approx(2 * figures.makespan_s - 50, abs=0.01)
    assert (figures.starts, figures.flaps, figures.peak) == (1, 0, 2)
    assert [one.ready for one in scaler.seen if one.now_s in (70, 90)] == [1, 2]


def test_a_draining_replica_finishes_its_requests_and_gets_no_new_ones() -> None:
    figures, records = run(Planned((0, 2), (100, 1)), steady(8, 120), replicas=2)
    assert {one.status for one in records} == {"finished"}
    left = [one for one in records if one.replica == 1]
    assert max(one.arrival_s for one in left) < 100
    ends = max(one.finished_s for one in left if one.finished_s is not None)
    assert ends > 100
    assert figures.gpu_s == pytest.approx(figures.makespan_s + ends, abs=10)


def test_a_new_replica_in_an_old_place_has_an_empty_cache() -> None:
    _, records = run(Planned((0, 2), (60, 1), (100, 2)), steady(8, 200), replicas=2, startup_s=0.0)
    assert {one.status for one in records} == {"finished"}
    assert any(one.replica == 1 and one.arrival_s > 100 for one in records)


def test_nothing_is_expected_in_the_cache_of_a_replica_that_ended() -> None:
    calls = [
        Call(
            input_tokens=100,
            output_tokens=50,
            max_output_tokens=50,
            prompt=(Segment(f"system {n}", 90),),
        )
        for n in range(8)
    ]
    programs = [Program(str(n), "ns/team/a", n / 8, (calls[n % 8],)) for n in range(800)]
    records: list[Record] = []
    fleet = ScaledFleet(
        Setup(profile=PROFILE, replicas=2).fleet(), records.append,
        scaler=Planned((0, 2), (60, 1)), meter=DemandMeter(), startup_s=0.0,
    )  # fmt: skip
    fleet.run(Workload("shared", programs))
    assert {one.replica for one in records} == {0, 1}
    assert [fleet.index.held(slot) for slot in (0, 1)] == [8, 0]


def test_what_starts_and_ends_again_soon_is_a_flap() -> None:
    figures, _ = run(Planned((0, 1), (20, 2), (60, 1), (100, 2)), steady(1, 200))
    assert (figures.starts, figures.flaps) == (2, 2)


def test_a_scaler_sees_demand_waits_and_throughput() -> None:
    scaler = Planned((0, 1))
    run(scaler, steady(40, 130))
    last = [one for one in scaler.seen if one.now_s <= 130][-1]
    assert last.waiting > 100
    assert last.in_flight > last.waiting
    assert sum(last.waiting_service.values()) == pytest.approx(200 * last.waiting, rel=0.1)
    assert 110 < last.saturated_s < 130
    assert last.saturated_service / last.saturated_s == pytest.approx(last.seen_per_s, rel=0.1)
    assert last.ttft_p95_s is not None
    assert last.ttft_p95_s > 10
    assert sum(last.asked_per_s.values()) == pytest.approx(40 * 200, rel=0.3)
    assert last.seen_per_s is not None
    assert last.seen_per_s < sum(last.asked_per_s.values())
    assert last.queue_s is not None
    assert last.queue_s > 1


def test_clients_beyond_twice_their_part_are_not_within_their_share() -> None:
    clients = {
        "ns/a/x": Client("ns/a/x", "ns/a", tenant_weight=3.0),
        "ns/b/y": Client("ns/b/y", "ns/b"),
    }
    client_of = Workload("", (), clients).client
    assert within_share({"ns/a/x": 500.0, "ns/b/y": 600.0}, client_of) == {"ns/a/x"}
    assert within_share({}, client_of) == frozenset()
    # Clients that are not declared have one tenant, as in the engines: each has half of its quarter.
    undeclared = {"ns/a/x": 600.0, "one": 220.0, "other": 0.1}
    assert within_share(undeclared, client_of) == {"ns/a/x", "other"}


def terms(tmp_path: Path, text: str = SERVICE) -> autoscale.ServiceTerms:
    path = tmp_path / "service.yaml"
    path.write_text(text)
    return autoscale.read_terms(path)


def observed(now_s: float, **changes: object) -> Observation:
    given: dict[str, object] = {"ready": 1, "in_flight": 1, **changes}
    return Observation(now_s=now_s, **given)  # type: ignore[arg-type]


def test_the_operator_grows_by_demand_up_to_the_cap_of_a_client(tmp_path: Path) -> None:
    found = terms(tmp_path)

    def decide(asked: dict[str, float]) -> int:
        scaler = OperatorScaler(found.scaling, found.parts, replicas=1)
        return [scaler.decide(observed(15.0 * n, asked_per_s=asked)) for n in range(9)][-1]

    assert decide({"ns/a/x": 1400.0}) == 2
    assert decide({"ns/a/x": 99_000.0}) == 3  # half of maxReplicas
    assert decide({"ns/a/x": 99_000.0, "ns/b/y": 99_000.0}) == 6


def test_the_operator_learns_capacity_and_grows_within_two_intervals(
    tmp_path: Path,
) -> None:
    text = SERVICE.replace("servicePerReplica: 1000, ", "")
    found = terms(tmp_path, text)
    scaler = OperatorScaler(found.scaling, found.parts, replicas=1)
    asked = {"ns/a/x": 500.0, "ns/b/y": 500.0}
    calm = [scaler.decide(observed(15.0 * n, asked_per_s=asked)) for n in range(20)]
    assert set(calm) == {1}
    waits = [
        scaler.decide(
            observed(
                300.0 + 15 * n,
                asked_per_s=asked,
                waiting_service=dict.fromkeys(asked, 15_000.0 * n),
                saturated_s=15.0 * n,
                saturated_service=15_000.0 * n,
            )
        )
        for n in range(3)
    ]
    assert waits == [1, 3, 4]


def test_the_queue_scaler_grows_by_waiting_requests_whoever_sent_them(tmp_path: Path) -> None:
    scaler = QueueScaler(terms(tmp_path).scaling, target=4.0, replicas=1)
    assert [scaler.decide(observed(15.0 * n, waiting=1000)) for n in range(3)][-1] == 6


def test_the_panic_scaler_does_not_shrink_while_it_panics(tmp_path: Path) -> None:
    scaler = PanicScaler(terms(tmp_path).scaling, target=10.0)
    calm = [scaler.decide(observed(2.0 * n, in_flight=5)) for n in range(40)]
    assert set(calm) == {1}
    burst = [scaler.decide(observed(80.0 + 2 * n, in_flight=40)) for n in range(4)]
    assert burst[-1] == 6
    after = [scaler.decide(observed(88.0 + 2 * n, in_flight=5, ready=6)) for n in range(100)]
    assert after[0] == 6
    assert after[-1] == 3  # half of the ready ones at a time, and those are 6 here


def test_every_scaler_serves_all_and_a_static_fleet_costs_its_size(tmp_path: Path) -> None:
    found = terms(tmp_path)
    candidates = autoscale.scalers(found, queue_target=4.0, concurrency_target=16.0)
    figures, _ = autoscale.compare(
        Setup(profile=PROFILE), steady(20, 90), found, candidates, startup_s=30.0
    )
    by_name = {one.scaler: one for one in figures}
    assert list(by_name) == ["evenkeel", "hpa queue 4", "panic window 16", "static 6", "static 3"]
    static = by_name["static 6"]
    assert static.gpu_s == pytest.approx(6 * static.makespan_s)
    assert static.attainment == 1.0
    assert by_name["evenkeel"].starts > 0
    assert by_name["evenkeel"].gpu_s < static.gpu_s


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("kind: Other\n", "has 0 documents of kind FairInferenceService"),
        (SERVICE.replace("maxReplicas: 6", "maxReplicas: 0"), "spec.autoscaling.maxReplicas"),
        (SERVICE[: SERVICE.index("  autoscaling")], "spec.autoscaling is not set"),
    ],
)
def test_an_invalid_file_names_field_and_remedy(tmp_path: Path, text: str, want: str) -> None:
    with pytest.raises(ValueError, match=want):
        terms(tmp_path, text)


def test_the_decision_core_needs_no_kubernetes_client() -> None:
    program = (
        "import sys; sys.modules['aiohttp'] = sys.modules['kubernetes_asyncio'] = None\n"
        "import evenkeel_operator.core.scaling, evenkeel_laboratory.commands.scalers"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
