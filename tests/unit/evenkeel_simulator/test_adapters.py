"""LoRA adapters in the engine model: slots, loads, prefixes of their own, and fairness with more adapters than slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.order import LONGEST_MATCH
from evenkeel_laboratory.experiments.setup import Setup, engine_config, simulate
from evenkeel_laboratory.experiments.workload_file import WorkloadError, make_workload, read_spec
from evenkeel_simulator.engine.adapters import AdapterSlots
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.request import EngineRequest
from evenkeel_simulator.traffic.workload import Workload

from tests.unit.evenkeel_simulator.engine_support import PROFILE, LongestMatch, Queue

LOAD_MS = 100.0
LOAD_TOKENS = 400  # at 0.25 ms each
QUANTUM = 500


def config(slots: int | None = 2, *, running: int = 8) -> EngineConfig:
    return EngineConfig(
        kv_tokens=10_000,
        max_running=running,
        admission=AdmissionRule.RESERVATION,
        adapters_per_batch=slots,
        adapter_load_ms=LOAD_MS,
    )


def request(
    name: str, adapter: str | None, *, client: str = "ns/t/a", output: int = 4
) -> EngineRequest:
    return EngineRequest(
        id=name,
        client=client,
        tenant=client.rsplit("/", 1)[0],
        arrival_s=0.0,
        input_tokens=100,
        max_output_tokens=output,
        target_output_tokens=output,
        prompt=(Segment("system", 100),),
        adapter=adapter,
    )


def steps(engine: Engine) -> Iterator[float]:
    now_s = 0.0
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
        yield now_s


def test_a_batch_uses_no_more_adapters_than_there_are_slots() -> None:
    engine = Engine(config(2), Queue(), PROFILE)
    for number in range(12):
        engine.submit(request(f"r{number}", ("x", "y", "z", None)[number % 4]), 0.0)
    served = Counter[str | None]()
    for _ in steps(engine):
        running = {one.adapter for one in engine.running()}
        assert len(running) <= 2
        served.update(running)
    assert set(served) == {"x", "y", "z", None}


def test_the_least_recently_used_idle_adapter_makes_room() -> None:
    slots = AdapterSlots(2)
    assert slots.enter("x")
    assert slots.enter("y")
    assert not slots.fits("z")
    slots.leave("y")
    slots.leave("x")
    assert not slots.enter("x")  # still loaded
    assert slots.fits("z")
    assert slots.enter("z")
    assert list(slots.loaded) == ["x", "z"]
    slots.leave("x")
    assert not slots.enter(None)  # the model itself needs no load, and takes a slot
    assert list(slots.loaded) == ["z", None]


def test_a_load_takes_time_and_is_charged_to_the_client_that_causes_it() -> None:
    engine = Engine(config(2), Dlpm(rules=DeficitRules(quantum=QUANTUM)), PROFILE)
    engine.submit(request("first", "x", output=1), 0.0)
    step = engine.step(0.0)
    assert step is not None
    assert step.end_s == pytest.approx((8 + 25 + LOAD_MS) / 1000)
    assert engine.accounts.clients["ns/t/a"].service == 100 + LOAD_TOKENS + 2
    engine.submit(request("second", "x", output=1, client="ns/t/b"), step.end_s)
    again = engine.step(step.end_s)
    assert again is not None
    assert again.end_s - step.end_s == pytest.approx((8 + 0.25) / 1000)  # its prompt is cached
    assert engine.accounts.clients["ns/t/b"].service == 1 + 2


@pytest.mark.parametrize(
    ("first", "second", "want"), [("x", "x", 99), ("x", "y", 0), ("x", None, 0), (None, "x", 0)]
)
def test_no_prefix_is_shared_across_adapters(
    first: str | None, second: str | None, want: int
) -> None:
    engine = Engine(config(2), LongestMatch(), PROFILE)
    engine.submit(request("first", first), 0.0)
    *_, end_s = steps(engine)
    late = request("second", second)
    engine.submit(late, end_s)
    while engine.has_work:
        engine.step(end_s)
    assert late.cached_tokens == want


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_dlpm_is_fair_with_more_adapters_than_slots(slots: int, seed: int) -> None:
    rng = Random(seed)
    engine = Engine(config(slots), Dlpm(rules=DeficitRules(quantum=QUANTUM)), PROFILE)
    clients = [f"ns/t{number}/c" for number in range(6)]
    for number in range(600):
        client = rng.choice(clients)
        made = request(f"r{number}", client[3:5], client=client, output=rng.randint(1, 30))
        engine.submit(made, 0.0)
    # One turn at a time: U is what a whole batch of one client may cost after its last admission.
    most = LinearCost().input_cost(100 + LOAD_TOKENS) + 8 * 2 * 30
    seen = 0
    for _ in steps(engine):
        states = engine.policy.clients()
        if len(states) < 6 or not all(state.waiting for state in states.values()):
            break
        service = [row.service for row in engine.accounts.clients.values()]
        if len(service) == 6:
            assert max(service) - min(service) <= 2 * (most + QUANTUM)
            seen += 1
    assert seen > 50


def test_a_request_for_a_rare_adapter_is_not_overtaken_without_limit() -> None:
    engine = Engine(config(2, running=4), Dlpm(rules=DeficitRules(quantum=QUANTUM)), PROFILE)
    for number in range(300):
        engine.submit(request(f"warm{number}", "xy"[number % 2], output=1 + number % 7), 0.0)
        if number == 8:
            engine.submit(request("rare", "z"), 0.0)
    order: list[str] = []
    now_s = 0.0
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
        order += [one.id for one in step.admitted]
    assert order.index("rare") <= 9 + LONGEST_MATCH.max_overtaken


WORKLOAD = """
about: four clients with an adapter each
profile: a10g-llama3.2-3b
replicas: 2
duration_s: 20
adapters_per_batch: 2
clients:
  - {name: c, count: 4, adapters: [x, y], arrivals: {rate_per_s: 3},
     program: {kind: single, input_tokens: 400, prefix_tokens: 320, output_tokens: 16}}
"""


def test_a_workload_file_names_adapters_of_its_clients(tmp_path: Path) -> None:
    file = tmp_path / "adapters.yaml"
    file.write_text(WORKLOAD)
    spec = read_spec(file)
    work = list(make_workload("w", spec, seed=1, traces=tmp_path).programs)
    assert {program.adapter for program in work} == {"x", "y"}
    setup = Setup(
        profile=PROFILE,
        replicas=2,
        engine=engine_config(adapters_per_batch=spec.adapters_per_batch),
    )
    records, _ = simulate(setup, Workload("w", work))
    assert len(records) == len(work)
    assert all(record.status == "finished" for record in records)
    # Each client has one prefix, which each adapter computes for itself at least once.
    assert len([one for one in records if not one.cached_tokens]) >= 2 * 4
    file.write_text(WORKLOAD.replace("adapters_per_batch: 2\n", ""))
    with pytest.raises(WorkloadError, match="adapters_per_batch is required"):
        read_spec(file)
