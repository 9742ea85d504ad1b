"""Whoever is chosen to leave is whom the ReplicaSet removes, whatever state the pods are in and however it breaks ties."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from evenkeel_operator.core.rotation import DRAIN_PATIENCE, next_step
from evenkeel_operator.core.workload import COST_OF_CANDIDATES, EnginePod, Mark
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_routers import answer, replica

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
STATES = ((False, False, False), (True, False, False), (True, True, False), (True, True, True))
MARKS = (None, Mark(NOW - timedelta(seconds=1)), Mark(NOW - 2 * DRAIN_PATIENCE), Mark(None))

engine_lists = st.lists(
    st.tuples(
        st.sampled_from(STATES), st.sampled_from(MARKS), st.booleans(), st.sampled_from(["m", "n"])
    ),
    min_size=1,
    max_size=8,
).map(
    lambda found: tuple(
        EnginePod(
            name=f"e{number}",
            uid=f"u{number}",
            node=node if state[0] else "",
            template="t",
            running=state[1],
            ready=state[2],
            drained_by_hand=by_hand,
            mark=mark,
        )
        for number, (state, mark, by_hand, node) in enumerate(found)
    )
)
loads = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=8, max_size=8)


def removed(engines: tuple[EnginePod, ...], marked: set[str], count: int) -> set[str]:
    """As `ActivePodsWithRanks` of Kubernetes sorts them; ties are broken against us."""

    def rank(engine: EnginePod) -> tuple[bool, bool, bool, int, bool]:
        cost = int(COST_OF_CANDIDATES) if engine.name in marked else 0
        return bool(engine.node), engine.running, engine.ready, cost, engine.name in marked

    return {engine.name for engine in sorted(engines, key=rank)[:count]}


@given(engine_lists, loads, st.integers(1, 8))
def test_the_replica_set_removes_the_candidates(
    engines: tuple[EnginePod, ...], loads: list[tuple[int, int]], wanted: int
) -> None:
    said = answer(
        *(
            replica(engine.name, in_flight=requests, blocks=blocks)
            for engine, (requests, blocks) in zip(engines, loads, strict=False)
        )
    )
    surplus = max(0, len(engines) - wanted)
    found = next_step(
        engines, wanted=wanted, shrinking=surplus > 0, answers=[said], cordoned={"m"}, now=NOW
    )
    before = {engine.name for engine in engines if engine.mark}
    after = before - {engine.name for engine in found.unmark} | {e.name for e in found.mark}
    assert len(after) == surplus
    assert removed(engines, after, surplus) == after
    # A mark that is new, or that a router has not obeyed within its time, holds the Deployment back; nothing else does.
    young = {
        e.name for e in engines if e.mark and e.mark.since and NOW - e.mark.since < DRAIN_PATIENCE
    }
    assert found.wait == bool(found.mark or after & young)
