"""The simulator admits a closed queue as the real engine does: the same passes, the same order, the same cache hits.

Both run the same policy, each that a replica offers, so the engine admits in the order that the policy chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import httpx
import pytest
from evenkeel_contract.queueorder import RequestOrder
from evenkeel_sglang.hooks import FLAGS
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig

from tests.sglang.engine import Engine, probed
from tests.sglang.fidelity import (
    UPSTREAM,
    Scenario,
    arrivals,
    policy_of,
    real_passes,
    retractions,
    simulated_passes,
)

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

RUNNING, QUANTUM = 16, 500
# So little memory that what is running, the prefixes of all and what finished do not fit together.
PREFIXES_KEPT = Scenario("kept", clients=5, requests_each=24)
LONG_OUTPUTS = Scenario("long", clients=4, requests_each=20, most_output_tokens=100)
LOST_BETS = Scenario("bets", clients=4, requests_each=20, most_output_tokens=300, bets=True)
MIXED_LENGTHS = Scenario("lengths", clients=4, requests_each=10, longest_tail_tokens=4000)
CHUNKS = Scenario("chunks", clients=8, requests_each=8, segment_tokens=1)

Start = Callable[..., Engine]


async def compare(
    start: Start,
    folder: Path,
    flag: str,
    scenarios: Sequence[Scenario],
    *,
    pool: int,
    chunk: int,
    order: RequestOrder = RequestOrder.LONGEST_MATCH,
) -> None:
    """Assert that engine and simulator go through the scenarios alike."""
    trace = folder / "trace"
    ours = flag not in UPSTREAM
    settings = {
        # Upstream's fcfs touches the prefixes of those who wait in every 32nd pass; the simulator does not.
        "SGLANG_ENABLE_WAITING_PREFIX_REFRESH": "0",
        **({"EVENKEEL_CLIENT_QUANTUM": str(QUANTUM)} if ours else {}),
        "EVENKEEL_WARMUP_S": "0",  # the simulator's policy here is that of a replica that is warm
        "EVENKEEL_ORDER": order.value,
        "EVENKEEL_ISOLATION": "Off",  # it depends on how long each step takes
    }
    engine = start(
        *("--schedule-policy", flag, "--disable-overlap-schedule"),
        *("--max-total-tokens", str(pool), "--max-running-requests", str(RUNNING)),
        *("--chunked-prefill-size", str(chunk)),
        environment={**probed(trace, with_plug_in=ours), **settings},
    )
    config = EngineConfig(
        kv_tokens=pool,
        max_running=RUNNING,
        prefill_tokens=chunk,
        isolation=None,
        admission=AdmissionRule.HISTORY if ours else AdmissionRule.SGLANG,
        share_in_batch=ours,  # upstream has a rule of its own, which stands in its order
    )
    for scenario in scenarios:
        asks = scenario.asks()
        await engine.run_queue(asks)
        async with httpx.AsyncClient(base_url=engine.url) as http:
            await engine.idle(http)
            (await http.post("/flush_cache")).raise_for_status()

        arrived = arrivals(trace, scenario)
        assert sorted(chain(*arrived)) == sorted(body["rid"] for body in asks)
        policy = policy_of(flag, QUANTUM, order)
        expected = simulated_passes(scenario, arrived, policy=policy, config=config)
        assert real_passes(trace, scenario) == expected, scenario.name
        if scenario.bets:
            assert retractions(trace, scenario), "no bet was lost: the scenario shows nothing"


@pytest.mark.parametrize(
    "flag",
    [
        "dlpm",
        *(
            pytest.param(flag, marks=pytest.mark.slow)
            for flag in (*FLAGS, *UPSTREAM)
            if flag != "dlpm"
        ),
    ],
)
async def test_the_simulator_admits_as_the_engine_does_while_memory_runs_short(
    start: Start, tmp_path: Path, flag: str
) -> None:
    scenarios = [PREFIXES_KEPT, LONG_OUTPUTS, LOST_BETS]
    await compare(start, tmp_path, flag, scenarios, pool=2048, chunk=2048)


async def test_the_engine_has_the_other_order_of_dlpm(start: Start, tmp_path: Path) -> None:
    order = RequestOrder.MATCH_OCTAVES
    await compare(start, tmp_path, "dlpm", [MIXED_LENGTHS], pool=8192, chunk=8192, order=order)


@pytest.mark.parametrize(
    "flag", [pytest.param(flag, marks=pytest.mark.slow) for flag in ("dlpm", "fcfs")]
)
async def test_the_simulator_cuts_prompts_into_chunks_as_the_engine_does(
    start: Start, tmp_path: Path, flag: str
) -> None:
    await compare(start, tmp_path, flag, (CHUNKS,), pool=8192, chunk=96)
