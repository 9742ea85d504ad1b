"""All ranks of an engine with tensor or pipeline parallelism take the same decisions, whatever their own clocks show."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from evenkeel_fairshare.replica.registry import POLICIES
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evenkeel_plugin.test_scheduling import Loop, req
from tests.unit.evenkeel_sglang.test_rank_clock import rank


@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(list(POLICIES)),
    ranks=st.integers(2, 4),
    slots=st.integers(1, 6),
)
def test_ranks_admit_charge_and_measure_alike(
    seed: int, policy: str, ranks: int, slots: int
) -> None:
    """Requests of weighted clients arrive, end and are aborted at random. Only the first rank may read its own clock."""
    rng, now_s = Random(seed), 1000.0
    with pytest.MonkeyPatch.context() as patch:
        clocks = [lambda: now_s, *[lambda: 1 / 0] * (ranks - 1)]
        cores = [rank(patch, clock, policy) for clock in clocks]
    loops = [Loop(slots=slots) for _ in cores]
    for loop, (scheduling, _) in zip(loops, cores, strict=True):
        loop.scheduling = scheduling
    for step in range(120):
        now_s += rng.choice([0.01, 0.3, 2.0])
        sent = [
            {
                "client": rng.choice("abc"),
                "tokens": rng.randint(1, 400),
                "weight": rng.randint(1, 3),
            }
            for _ in range(rng.choice([0, 0, 1, 3]) if step < 100 else 0)
        ]
        received: list[Any] = [(f"{step}-{n}", one) for n, one in enumerate(sent)]
        if received or cores[0][0].busy:
            cores[0][1].send(received)
        dice = rng.random()
        decided = []
        for loop, (scheduling, clock) in zip(loops, cores, strict=True):
            loop.send(*[req(rid, base=1000 * step, **one) for rid, one in clock.read(received)])
            if dice < 0.1 and loop.waiting_queue:  # one is aborted while it waits
                loop.waiting_queue = loop.waiting_queue[:-1]
            admitted = loop.step()
            ended = [one.rid for one in loop.running if len(one.output_ids) >= 3 + dice]
            loop.forward(is_prefill=bool(admitted), finish=ended)
            decided.append((admitted, scheduling.snapshot()))
        assert all(one == decided[0] for one in decided)
