"""A chat client beside one of long outputs on one engine, with and without shares of the KV pool (R16)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from evenkeel_fairshare.replica.registry import make_policy
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.engine.request import State

from bench.closed_loop import LoopFigures, read_loop, run_closed_loop, total_service_per_s
from tests.unit.evenkeel_simulator.engine_support import make_request

FOLDER = Path(__file__).parents[3] / "bench/workloads/isolation"
FROM_S, END_S = 300.0, 700.0


@cache
def play(name: str, *, shared: bool) -> dict[str, LoopFigures]:
    spec = read_loop(FOLDER / f"{name}.yaml")
    config = EngineConfig(admission=AdmissionRule.HISTORY, share_memory=shared)
    engine = Engine(config, make_policy("DLPM"), PROFILES[spec.profile])
    return run_closed_loop(engine, spec.clients, until_s=END_S)


def test_a_chat_client_gets_room_within_a_second_beside_long_outputs() -> None:
    before, now = (play("reasoning", shared=shared)["measured"] for shared in (False, True))
    assert before.ttft_s(FROM_S, 99) > 30
    assert now.ttft_s(FROM_S, 99) <= 3
    assert now.rate_per_s(FROM_S, END_S) >= 0.45


def test_what_is_computed_again_is_paid_once() -> None:
    config = EngineConfig(kv_tokens=1000, admission=AdmissionRule.RESERVATION, prefix_cache=False)
    engine = Engine(config, make_policy("DLPM"), PROFILES["a10g-llama2-7b"])
    for name in ("long-1", "long-2"):
        engine.submit(make_request(name, tail=10, output=480, client="ns/a/a"), 0.0)
    now_s = 0.0
    while engine.loads().used_tokens < 700:
        now_s = engine.step(now_s).end_s  # type: ignore[union-attr]
    chat = make_request("chat", tail=60, output=5, client="ns/b/b")
    engine.submit(chat, now_s)
    retracted = []
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
        retracted += [request.id for request in step.retracted]
    assert retracted == ["long-2"]
    assert chat.state is State.FINISHED
    totals = engine.accounts.clients["ns/a/a"]
    assert totals.output_tokens == 2 * 480
    assert totals.extend_tokens > 2 * 10 + 300, "nothing was computed again"
    assert totals.service == 2 * (10 + 2 * 480)


def test_the_last_request_of_a_batch_gives_nothing_back() -> None:
    config = EngineConfig(kv_tokens=1000, admission=AdmissionRule.RESERVATION, prefix_cache=False)
    engine = Engine(config, make_policy("DLPM"), PROFILES["a10g-llama2-7b"])
    engine.submit(make_request("long", tail=10, output=900, client="ns/a/a"), 0.0)
    now_s = 0.0
    while engine.loads().used_tokens < 600:
        now_s = engine.step(now_s).end_s  # type: ignore[union-attr]
    chat = make_request("chat", tail=300, output=5, client="ns/b/b")
    engine.submit(chat, now_s)
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
        assert not step.retracted
    assert chat.state is State.FINISHED


def test_memory_given_back_costs_little_service() -> None:
    before, now = (play("reasoning", shared=shared) for shared in (False, True))
    rates = [total_service_per_s(one.values(), 0.0, END_S) for one in (before, now)]
    assert rates[1] >= 0.98 * rates[0]
