"""The engine on the wall clock: short delays are made up for, longer ones are not."""

from __future__ import annotations

import asyncio
from array import array
from math import ceil
from types import SimpleNamespace

import pytest
from evenkeel_contract.key import UNKNOWN
from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.server import driver
from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.replica import Replica
from evenkeel_simulator.server.sampling import Sampling
from evenkeel_simulator.server.served import Owner
from evenkeel_simulator.server.settings import Settings

from tests.support.virtual_time import run_virtually

STEPS, STEP_S, SPEED = 10, 0.1, 10.0
INPUT_TOKENS = 40
PROFILE = CostProfile(
    prefill_ms=1000 * STEP_S - INPUT_TOKENS, prefill_token_ms=1.0, decode_ms=1000 * STEP_S,
    decode_request_ms=0.0, decode_kv_token_ms=0.0, kv_tokens=1000,
)  # fmt: skip
ASK = Ask(
    model="m",
    prompts=(array("I", range(INPUT_TOKENS)),),
    sampling=Sampling(max_tokens=STEPS, ignore_eos=True),
)


@pytest.mark.parametrize(
    ("tick_s", "want_s"),
    [
        (0.2, STEPS * STEP_S),  # of the wall clock, so two seconds of the engine
        (0.5, (STEPS - 1) * 0.5 * SPEED + STEP_S),  # every step begins at a tick
    ],
)
def test_a_delay_is_made_up_for_by_the_wall_clock_at_any_speed(
    monkeypatch: pytest.MonkeyPatch, tick_s: float, want_s: float
) -> None:
    """Every timer is late: the clock shows only whole ticks."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ticks = SimpleNamespace(monotonic=lambda: ceil(loop.time() / tick_s - 1e-6) * tick_s)
        monkeypatch.setattr(driver, "time", ticks)
        replica = Replica(Settings(model="m", profile=PROFILE, speed=SPEED))
        running = asyncio.create_task(replica.driver.run())
        (request,) = replica.admit(ASK, Owner(UNKNOWN, None), received_s=0.0)
        while request.finish is None:
            await request.news.wait()
            request.news.clear()
        assert request.finished_s is not None
        assert request.finished_s - request.arrival_s == pytest.approx(want_s)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtually(main())
