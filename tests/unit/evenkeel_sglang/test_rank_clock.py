"""All ranks of an engine decide alike, by the first rank's time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_plugin.scheduling import Scheduling
from evenkeel_sglang import hooks
from evenkeel_sglang.engine import RankClock, Tick

from tests.unit.evenkeel_plugin.test_scheduling import Loop, req


def test_ticks_travel_among_requests_and_are_taken_out():
    times = iter([10.0, 10.01, 10.1])
    first, other = RankClock(lambda: next(times)), RankClock(lambda: 1 / 0)
    sent: list[list[Any]] = []
    for requests in (["a"], ["b"], []):
        received = list(requests)
        first.send(received)
        sent.append(received)
    assert sent == [["a", Tick(10.0)], ["b"], [Tick(10.1)]], "not more often than TICK_S"
    for clock in (first, other):
        assert [clock.read(received) for received in sent] == [["a"], ["b"], []]
        assert clock() == 10.1


@pytest.mark.parametrize(
    ("rank", "busy", "result", "want"),
    [
        (0, False, [], []),
        (0, True, [], [Tick(5.0)]),
        (0, False, ["a"], ["a", Tick(5.0)]),
        (1, True, None, None),
    ],
    ids=["idle", "busy", "requests", "not the first rank"],
)
def test_only_the_first_rank_adds_its_time(monkeypatch, rank, busy, result, want):
    monkeypatch.setattr(hooks, "_rank_clock", RankClock(lambda: 5.0))
    monkeypatch.setattr(hooks, "_scheduling", SimpleNamespace(busy=busy))
    monkeypatch.setattr(hooks, "_is_first_rank", lambda: rank == 0)
    hooks.received(result, None)
    assert result == want


def test_a_single_rank_has_a_clock_of_its_own(monkeypatch):
    monkeypatch.setattr(hooks, "_rank_clock", None)
    received: list[Any] = ["a"]
    hooks.received(received, None)
    scheduler = SimpleNamespace(_engine_paused=False)
    assert hooks.process_input(scheduler, received) == ((scheduler, ["a"]), {})


def rank(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], policy: str = "DLPM"
) -> tuple[Scheduling, RankClock]:
    """The scheduling of one of several ranks, whose own clock is `clock`."""
    monkeypatch.setattr(hooks.seams, "matcher", lambda: lambda request, cache: None)
    monkeypatch.setattr(hooks, "_rank_clock", None)
    monkeypatch.setattr(hooks, "RankClock", lambda: RankClock(clock))
    arguments = SimpleNamespace(tp_size=2, pp_size=1)
    scheduler = SimpleNamespace(server_args=arguments, tree_cache=None)
    scheduling = hooks.make_scheduling(policy, EngineSettings(), scheduler)
    assert hooks._rank_clock is not None
    return scheduling, hooks._rank_clock


def test_two_ranks_with_different_clocks_warm_up_and_measure_alike(monkeypatch):
    """Each rank has a scheduler core of its own; only what the first one sends is common to them."""
    now_s = 1000.0
    ranks = [rank(monkeypatch, clock) for clock in (lambda: now_s, lambda: 1 / 0)]
    loops = [Loop(slots=3), Loop(slots=3)]
    for loop, (scheduling, _) in zip(loops, ranks, strict=True):
        loop.scheduling = scheduling
    quanta, warming, orders = set(), [], []
    for number in range(400):
        now_s += 0.1
        received: list[Any] = [("ab"[number % 3 > 0], number)] if number < 300 else []
        if received or ranks[0][0].busy:
            ranks[0][1].send(received)
        decided = []
        for loop, (scheduling, clock) in zip(loops, ranks, strict=True):
            for client, index in clock.read(received):
                loop.send(req(f"{client}{index}", client, base=100 * index))
            admitted = loop.step()
            ended = [one.rid for one in loop.running if len(one.output_ids) >= 3]
            loop.forward(is_prefill=bool(admitted), finish=ended)
            levels = scheduling.policy.tenants  # type: ignore[attr-defined]
            decided.append(
                (admitted, levels.warming_up, levels.quantum, scheduling.policy.clients())
            )
        assert decided[0] == decided[1]
        orders += decided[0][0]
        warming.append(decided[0][1])
        quanta.add(decided[0][2])
    assert len(orders) == 300 and orders != sorted(orders)
    assert warming[0] and not warming[-1], "the warm-up began and ended"
    assert len(quanta) > 1, "the quantum follows the service that was measured"
