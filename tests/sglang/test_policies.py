"""Every other policy, once through its flag on the real engine: it keeps what it promises, by the probe's trace."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.sglang.engine import Engine, ask, probed, tokens
from tests.sglang.ways import events

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

GREEDY, MODEST = "greedy", "modest"
PREFIX_TOKENS, TAIL_TOKENS, OUTPUT_TOKENS, RUNNING = 200, 20, 16, 4
INPUT_TOKENS = PREFIX_TOKENS + TAIL_TOKENS
QUANTUM = 500
# What one client can get after its last turn: an input, and outputs of all that run.
U = INPUT_TOKENS + 2 * RUNNING * OUTPUT_TOKENS

Start = Callable[..., Engine]


@dataclass(slots=True)
class Moment:
    """One admission, and what had been so far."""

    rid: str
    client: str
    cached_tokens: int
    first_of_pass: bool
    served: dict[str, int]
    """Before it: whole inputs of who was admitted, and 2 for each output token."""
    waiting: dict[str, int] = field(default_factory=dict)


def moments(trace: Path) -> Iterator[Moment]:
    """All admissions in order, from the first one with the whole queue there."""
    served = dict.fromkeys((GREEDY, MODEST), 0)
    waiting = dict(served)
    for event in events(trace):
        match event["kind"]:
            case "arrival":
                client = event["rid"].split("-")[0]
                if client in waiting:  # the engine asks itself something first
                    waiting[client] += 1
            case "pass":
                first = True
                for rid, cached_tokens, extend_tokens in event["admitted"]:
                    client = rid.split("-")[0]
                    if client not in waiting:
                        continue
                    yield Moment(rid, client, cached_tokens, first, dict(served), dict(waiting))
                    served[client] += cached_tokens + extend_tokens
                    waiting[client] -= 1
                    first = False
            case "step":
                for rid, made in event["made"].items():
                    client = rid.split("-")[0]
                    if client in served:
                        served[client] += 2 * made


def in_order_of_arrival(seen: list[Moment], sent: list[str]) -> None:
    """FCFS."""
    assert [moment.rid for moment in seen] == sent


def longest_match_first(seen: list[Moment], sent: list[str]) -> None:
    """LPM: within a pass; and who has nothing cached enters last of all."""
    for before, after in pairwise(seen):
        assert after.first_of_pass or before.cached_tokens >= after.cached_tokens
    assert seen[-1].client == MODEST


def lowest_counter_first(seen: list[Moment], sent: list[str]) -> None:
    """VTC and LCF: the client that is admitted was served least of those who wait."""
    for moment in seen:
        least = min(moment.served[client] for client, count in moment.waiting.items() if count)
        assert moment.served[moment.client] == least
    level(seen, sent)


def level(seen: list[Moment], sent: list[str]) -> None:
    """While both wait nobody is ahead by more than the policy's quantum and what runs."""
    both = [moment for moment in seen if all(moment.waiting.values())]
    assert len(both) > 2 * 6
    for moment in both:
        assert abs(moment.served[GREEDY] - moment.served[MODEST]) <= 2 * (U + QUANTUM)


@pytest.mark.parametrize(
    ("flag", "keeps"),
    [
        ("vtc", lowest_counter_first),
        *(
            pytest.param(flag, keeps, marks=pytest.mark.slow)
            for flag, keeps in (
                ("lcf", lowest_counter_first),
                ("vtcpredict", level),
                ("drr", level),
                ("evenkeel-fcfs", in_order_of_arrival),
                ("evenkeel-lpm", longest_match_first),
            )
        ),
    ],
)
async def test_a_policy_keeps_its_promise_beside_a_flood(
    start: Start, tmp_path: Path, flag: str, keeps: Callable[[list[Moment], list[str]], None]
) -> None:
    rng = random.Random(7)
    trace = tmp_path / "trace"
    size = ("--max-total-tokens", "4096", "--max-running-requests", str(RUNNING))
    engine = start(
        *("--schedule-policy", flag, "--disable-overlap-schedule", *size),
        environment=probed(trace, with_plug_in=True) | {"EVENKEEL_CLIENT_QUANTUM": str(QUANTUM)},
    )
    asks = []
    for client, count in ((GREEDY, 40), (MODEST, 8)):
        prefix = tokens(rng, PREFIX_TOKENS)
        for number in range(count):
            body = ask(client, prefix + tokens(rng, TAIL_TOKENS), output_tokens=OUTPUT_TOKENS)
            asks.append(body | {"rid": f"{client}-{number}"})

    answers = await engine.run_queue(asks)

    assert all(len(answer.output_ids) == OUTPUT_TOKENS for answer in answers)
    seen = list(moments(trace))
    assert len(seen) == len(asks)
    keeps(seen, [body["rid"] for body in asks])
