"""Every fault that a platform team fears, on a real cluster, under steady load; each request is accounted for.

The invariants: a planned change loses no request; a crash costs only requests on the processes that it ended; a condition
names the fault, one alert calls a human where one is needed, and both clear by themselves; nothing is left afterwards; and
clients that always have waiting requests stay within the bound of theorem 2 over the whole run.
`EVENKEEL_WRITE_RESULTS=1` writes `bench/results/faults.json`.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from contextlib import suppress

import pytest
from evenkeel_fairshare.bounds import Churn, churn_gap, dlpm_overshoot
from evenkeel_fairshare.replica.deficit import DEFERRED_REFILLS

from e2e.faults import machine
from e2e.faults.load import Request
from e2e.faults.results import Row, written
from e2e.faults.scenes import SCENES, Scene
from e2e.faults.stage import (
    BRONZE,
    GOLD,
    MOST_REPLICAS,
    POOL_TOKENS,
    QUANTUM,
    REQUEST_TOKENS,
    WEIGHTS,
    Stage,
)
from e2e.operators import wait_until

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1200)]
_log = logging.getLogger(__name__)
NAMED_WITHIN_S = 120.0


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name.replace(" ", "-"))
def test_a_fault_costs_what_the_table_says_and_clears(scene: Scene, set_up: Stage) -> None:
    if scene.slow and "EVENKEEL_SLOW_FAULTS" not in os.environ:
        pytest.skip("lasts minutes: EVENKEEL_SLOW_FAULTS=1")
    began_s = time.monotonic()
    row = play(scene, set_up)
    _log.info("%s", row)
    if "EVENKEEL_WRITE_RESULTS" in os.environ:
        written(row)
    fired = {name for at_s, name in set_up.watch.fired if at_s > began_s}
    assert fired <= {scene.alert}, "another alert calls people"
    assert row.requests > 0
    if scene.planned:
        assert row.lost == 0, row.causes
    assert row.elsewhere == 0, row.causes


def play(scene: Scene, on: Stage) -> Row:
    """From rest through the fault to rest."""
    on.at_rest()
    began_s = time.monotonic()
    try:
        ended = scene.do(on) or frozenset()
        condition_s = _named(scene, on, began_s)
        alert_s = _alerted(scene, on, began_s)
        machine.sleep_until(began_s + scene.hold_s)
    finally:
        over_s, open_then = time.monotonic(), set(on.load.open)
        scene.undo(on)
    on.at_rest()
    wait_until(lambda: scene.alert not in on.watch.active, "the alert to clear", timeout_s=300)
    rest_s = time.monotonic()
    if ended:  # a request that the fault left without an answer ends by its time limit
        wait_until(
            lambda: open_then.isdisjoint(on.load.open), "requests of the fault", timeout_s=300
        )
    found = on.load.ended(after_s=began_s)
    lost = [one for one in found if one.fault]
    for one in lost:
        _log.info("lost at %.1f s: %s", one.ended_s - began_s, one)
    return Row(
        name=scene.name,
        planned=scene.planned,
        lasted_s=round(over_s - began_s, 1),
        requests=len(found),
        lost=len(lost),
        not_begun=sum(not one.begun for one in lost),
        elsewhere=len(_elsewhere(on, lost, ended)) if lost else 0,
        causes=dict(Counter(one.fault for one in lost)),
        condition=" ".join(scene.condition[:1]) if scene.condition else "",
        condition_s=condition_s,
        alert=scene.alert,
        alert_s=alert_s,
        alert_for=on.waits.get(scene.alert, ""),
        rest_s=round(rest_s - over_s, 1),
        last_loss_s=round(max((one.ended_s - began_s for one in lost), default=0.0), 1),
        users=scene.users,
        system=scene.system,
        human=scene.human,
    )


def _named(scene: Scene, on: Stage, began_s: float) -> float | None:
    if scene.condition is None:
        return None
    kind, reason = scene.condition

    def change() -> float | None:
        found = on.watch.named(scene.service, kind, reason, after_s=began_s)
        return None if found is None else found.at_s - began_s

    with suppress(AssertionError):
        return round(float(wait_until(change, f"{kind} {reason}", timeout_s=NAMED_WITHIN_S)), 1)
    seen = [(one.type, one.reason) for one in on.watch.changes if one.at_s > began_s]
    raise AssertionError(f"no condition {kind} {reason} named it; seen: {seen}")


def _alerted(scene: Scene, on: Stage, began_s: float) -> float | None:
    if not scene.alert:
        return None
    wait_until(lambda: scene.alert in on.watch.active, scene.alert, timeout_s=NAMED_WITHIN_S)
    return round(max(0.0, on.watch.active[scene.alert][1] - began_s), 1)


def _elsewhere(on: Stage, lost: list[Request], ended: frozenset[str]) -> list[Request]:
    """Lost requests that were on no process that the fault ended. A router that ended has logged none of its own."""
    logged = on.logged()
    a_router_ended = any("-router-" in name for name in ended)
    return [
        one
        for one in lost
        if (ended.isdisjoint(logged[one.id]) if one.id in logged else not a_router_ended)
    ]


def test_clients_with_waiting_requests_stay_within_the_bound(set_up: Stage) -> None:
    """Over all scenes, by what the clients received. The bound of theorem 2 for fleets that change."""
    churn = Churn(
        replicas=MOST_REPLICAS + 1,  # with one that surges
        overshoot=dlpm_overshoot(max_input_tokens=REQUEST_TOKENS, memory_tokens=POOL_TOKENS),
        quantum=QUANTUM,
        deferred_refills=DEFERRED_REFILLS,
    )
    bound = churn_gap(churn, (WEIGHTS[GOLD], WEIGHTS[BRONZE]))
    served = dict.fromkeys((GOLD, BRONZE), 0.0)
    leads = [0.0]
    for one in sorted(set_up.load.ended(), key=lambda one: one.ended_s):
        if one.tenant in served:
            served[one.tenant] += one.service / WEIGHTS[one.tenant]
            leads.append(served[GOLD] - served[BRONZE])
    gap = max(leads) - min(leads)
    _log.info(f"gap {gap:,.0f} of {bound:,.0f}; {served}; {len(leads)} requests")
    assert gap < bound
