"""Whatever an engine does to its requests, the plug-in's books have the same ones, and each request ends (docs/design/books)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from evenkeel_plugin.request import is_probe
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sglang_model import Engine

CLIENTS = ("a1", "a2", "b1", "c1")
EVENTS_OF_A_LIFE = 400
"""Events between two times at which all requests must end."""
TURNS = 20_000
"""Turns of the loop in which they must: far more than their tokens need."""


def one_of(rng: Random, engine: Engine) -> Callable[..., bool]:
    """The request of an abort: any that is not finished."""
    live = [one for one in engine.sent[-80:] if not one.finished()]
    chosen = rng.choice(live) if live else None
    return lambda request: request is chosen


def arrivals(rng: Random, engine: Engine) -> None:
    for _ in range(rng.choice([1, 1, 2, 6])):
        engine.arrive(
            rng.choice(CLIENTS),
            tokens=rng.choice([5, 40, 90, 90, 300]),
            output_tokens=rng.choice([1, 4, 20, 60]),
            grammar=rng.random() < 0.1,
        )


EVENTS: tuple[tuple[int, Callable[[Random, Engine], None]], ...] = (
    (30, arrivals),
    (45, lambda rng, engine: None),
    (12, lambda rng, engine: engine.abort(one_of(rng, engine))),
    (1, lambda rng, engine: engine.abort(lambda one: True)),
    (2, lambda rng, engine: engine.pause(retract=True)),
    (1, lambda rng, engine: engine.pause(retract=False)),
    (6, lambda rng, engine: engine.resume()),
    (2, lambda rng, engine: engine.flush()),
    (1, lambda rng, engine: engine.update_weights()),
    (2, lambda rng, engine: engine.probe()),
)


def assert_equal_books(engine: Engine) -> None:
    """The requests of the policy, of the shares and of the matches are those of the engine."""
    engine.settle()
    books = engine.scheduling
    waiting = {one for one in engine.waiting if not is_probe(one)}
    assert books._waiting.keys() == waiting
    assert books._running.keys() == engine.held
    assert {one.engine for one in books.policy.waiting()} == waiting  # type: ignore[attr-defined]
    time, memory, matching = books._shares.time, books._shares.memory, books._matching
    assert time is not None
    assert memory is not None
    assert matching is not None
    running = set(books._running.values())
    assert {*time._prefilling, *time._decoding} == running
    assert memory._clients.keys() == running | set(books._waiting.values())
    assert memory._decoding.keys() == {one for one in running if one.decodes}
    assert matching._computed_by.keys() <= engine.held
    assert {*books._giving, *books._given} <= engine.held
    assert (memory._due is None) or memory._due[0].open > 0


def live(engine: Engine, rng: Random, events: int) -> None:
    """Random events, each followed by a turn of the loop or none."""
    weights = [weight for weight, _ in EVENTS]
    for _ in range(events):
        rng.choices(EVENTS, weights)[0][1](rng, engine)
        for _ in range(rng.choice([0, 1, 1, 3])):
            engine.step()
        assert_equal_books(engine)


def all_end(engine: Engine) -> None:
    """Without new ones each request ends."""
    engine.resume()
    turns = 0
    while engine.waiting or engine.batch or engine.chunk or engine.grammar or engine.last:
        engine.step()
        turns += 1
        assert turns < TURNS, f"{len(engine.waiting)} requests wait for ever"
    assert not engine.scheduling.busy
    rows = engine.scheduling.snapshot()[0].values()
    assert {row.running for row in rows} <= {0}
    assert engine.stalls == 0, "the books had to be rebuilt"
    assert engine.bypassed == 0
    engine.sent.clear()


@given(seed=st.integers(0, 10**9), overlap=st.booleans(), events=st.integers(1, 150))
def test_books_equal_the_engines_after_each_event(seed: int, overlap: bool, events: int) -> None:
    rng = Random(seed)
    engine = Engine(rng, overlap=overlap)
    live(engine, rng, events)
    all_end(engine)


@given(seed=st.integers(0, 10**9), lives=st.integers(1, 4))
def test_books_may_be_rebuilt_at_any_time(seed: int, lives: int) -> None:
    rng = Random(seed)
    engine = Engine(rng, overlap=True)
    for _ in range(lives):
        live(engine, rng, rng.randrange(60))
        engine.scheduling._stalled_s = 5.0
        assert_equal_books(engine)
    assert engine.stalls == lives
    engine.stalls = 0
    all_end(engine)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [True, False])
def test_over_a_hundred_thousand_events_no_request_waits_for_ever(overlap: bool) -> None:
    rng = Random(35)
    engine = Engine(rng, overlap=overlap)
    for _ in range(50_000 // EVENTS_OF_A_LIFE):
        live(engine, rng, EVENTS_OF_A_LIFE)
        all_end(engine)
