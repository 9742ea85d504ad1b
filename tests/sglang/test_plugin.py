"""The plug-in inside the real engine: fair, told of, and closed where it does not fit."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import zmq
from evenkeel_contract.reports import (
    REPORT_VERSION,
    ClientReport,
    Report,
    ReportRequest,
    decode_report,
    encode,
)

from tests.sglang.engine import Engine, ask, tokens

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

POOL_TOKENS = 4096
QUANTUM = 500
INPUT, OUTPUT = 220, 16
U = 1 * POOL_TOKENS + 2 * POOL_TOKENS  # we·L_input + wq·M, with M the whole pool: generous

Start = Callable[..., Engine]


def flags(policy: str, *more: str) -> list[str]:
    pool = ["--max-total-tokens", str(POOL_TOKENS), "--max-running-requests", "16"]
    return ["--schedule-policy", policy, *pool, *more]


def report(port: int) -> Report:
    """The engine's report from the start."""
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send(encode(ReportRequest(version=REPORT_VERSION, incarnation="", since=0)))
        assert socket.poll(30_000), "no report"
        return decode_report(socket.recv())


def by_client(port: int) -> dict[str, ClientReport]:
    return {row.client: row for row in report(port).clients}


async def test_a_flood_on_one_replica_does_not_delay_the_other_client(
    start: Start, free_port: int
) -> None:
    rng = random.Random(1)
    prefix = {name: tokens(rng, 200) for name in ("greedy", "modest")}
    environment = {"EVENKEEL_CLIENT_QUANTUM": str(QUANTUM), "EVENKEEL_REPORTS_PORT": str(free_port)}
    engine = start(*flags("dlpm"), environment=environment)
    flood = [ask("greedy", prefix["greedy"] + tokens(rng, 20)) for _ in range(200)]
    few = [ask("modest", prefix["modest"] + tokens(rng, 20)) for _ in range(20)]

    answers = await engine.run_queue([*flood, *few])

    by_finish = sorted(answers, key=lambda answer: answer.finished_s)
    last_modest = max(i for i, answer in enumerate(by_finish) if "modest" in answer.client)
    # Level with the flood all along: 20 of the modest one by the time of about 20 of the greedy one, give or
    # take what the bound allows.
    assert last_modest < 2 * len(few) + 2 * U / (OUTPUT * 2 + 20)
    assert all(len(answer.output_ids) == OUTPUT for answer in answers)

    rows = by_client(free_port)
    assert rows["ns/greedy/greedy"].requests == 200
    for name, count in (("greedy", 200), ("modest", 20)):
        row = rows[f"ns/{name}/{name}"]
        assert row.extend_tokens + row.cached_tokens == count * INPUT
        assert row.output_tokens == count * OUTPUT
        assert row.service == row.extend_tokens + 2 * row.output_tokens
        assert (row.waiting, row.running) == (0, 0)
    hit_rate = rows["ns/greedy/greedy"].cached_tokens / (200 * INPUT)
    assert hit_rate > 0.85
    assert engine.metrics()['evenkeel_engine_policy_active{policy="DLPM"}'] == 1
