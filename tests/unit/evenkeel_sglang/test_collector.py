"""Full garbage collections happen while the engine is idle."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
from evenkeel_sglang.engine import WHEN_BUSY, WHEN_IDLE, Collector


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Cycle:
    """Garbage once its name is gone."""

    def __init__(self) -> None:
        self.me = self


def old_garbage() -> weakref.ref[Cycle]:
    """A cycle that survived the collections of younger objects, with a full one due."""
    cycle = Cycle()
    for _ in range(WHEN_IDLE):
        gc.collect(1)
    return weakref.ref(cycle)


def test_start_up_is_frozen_and_a_busy_engine_rarely_collects_all() -> None:
    Collector().look(idle=False)
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold()[2] >= WHEN_BUSY


def test_an_idle_engine_collects_all_when_it_is_due() -> None:
    collector = Collector()
    collector.look(idle=False)
    garbage = old_garbage()
    collector.look(idle=False)
    assert garbage() is not None
    collector.look(idle=True)
    assert garbage() is None


def test_an_idle_engine_does_not_collect_all_the_time() -> None:
    collector = Collector()
    collector.look(idle=False)
    garbage = old_garbage()
    collector.look(idle=True)
    assert garbage() is None
    cycle = Cycle()
    kept = weakref.ref(cycle)
    del cycle
    collector.look(idle=True)
    assert kept() is not None
