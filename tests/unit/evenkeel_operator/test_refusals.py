"""What the API server refuses is said, and tried again ever more rarely: not with every event."""

from __future__ import annotations

from random import Random

from evenkeel_operator.cluster.apply import FIRST_RETRY_S, LAST_RETRY_S, ApplyResult, Refusals
from evenkeel_operator.cluster.store import SERVICE, Key
from evenkeel_operator.core.objects import Ref
from evenkeel_operator.core.reasons import Note

from tests.support.operator_lives import KEY, Operator, cluster_with_the_sample, condition

REF = Ref("Deployment", "s-engine")
NO = Note("Refused", "no")


class Clock:
    now_s = 0.0


def test_each_no_to_the_same_write_doubles_the_wait_up_to_a_bound() -> None:
    clock, rng = Clock(), Random(1)
    refusals = Refusals(rng=rng, monotonic_s=lambda: clock.now_s)
    waits = []
    for attempt in range(1, 15):
        found = refusals.refused(KEY, REF, "change 1", why=NO)
        assert (found.attempts, refusals.pending(KEY, REF, "change 1")) == (attempt, found)
        waits.append(refusals.wait_s(found))
        clock.now_s = found.due_s
        assert refusals.pending(KEY, REF, "change 1") is None
    bounds = [min(LAST_RETRY_S, FIRST_RETRY_S * 2**n) for n in range(14)]
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert len(set(waits)) == len(waits)  # no two services come back together


def test_other_manifests_objects_and_services_are_not_delayed() -> None:
    refusals = Refusals(rng=Random(1), monotonic_s=lambda: 0.0)
    for _ in range(3):
        refusals.refused(KEY, REF, "change 1", why=NO)
    assert refusals.pending(KEY, REF, "change 2") is None
    assert refusals.pending(KEY, Ref("Service", "s-engine"), "change 1") is None
    assert refusals.pending(Key(SERVICE, "team-ml", "other"), REF, "change 1") is None
    assert refusals.refused(KEY, REF, "change 2", why=NO).attempts == 1
    refusals.keep(KEY, ())
    assert refusals.pending(KEY, REF, "change 2") is None


def test_the_first_of_several_refused_writes_says_when_to_try_again() -> None:
    result = ApplyResult()
    for again_s, want in ((8.0, 8.0), (2.0, 2.0), (5.0, 2.0)):
        result.refused(REF, NO, again_s=again_s)
        assert result.again_s == want
    assert len(result.notes) == 3


async def test_a_refused_rollout_is_reported_and_backs_off_despite_events() -> None:
    cluster = cluster_with_the_sample()
    operator = Operator(cluster)
    await operator.make_pass(KEY)
    asked: list[str] = []

    def refuses(item: object) -> str | None:
        if "simulated-engine" not in str(item) or "'kind': 'Deployment'" not in str(item):
            return None
        asked.append("engines")
        return "the policy says no"

    # Somebody scales the Deployment, and a policy keeps the operator from putting it back.
    cluster.refuses = refuses
    await operator.edit("Deployment", "simulated-engine", replicas=7)
    verdict = condition(cluster, "Degraded")
    assert (verdict["status"], verdict["reason"]) == ("True", "Refused")
    assert (
        "The API server refuses Deployment simulated-engine: the policy says no."
        in verdict["message"]
    )
    cluster.writes.clear()
    for _ in range(50):
        due_s = await operator.make_pass(KEY)
        assert due_s is not None
        assert 0 < due_s <= FIRST_RETRY_S
    assert (len(asked), cluster.writes) == (1, [])
    for tries in (2, 3):
        operator.now_s += due_s
        due_s = await operator.make_pass(KEY)
        assert due_s is not None
        assert len(asked) == tries
    assert due_s > FIRST_RETRY_S
    cluster.refuses = lambda _: None
    operator.now_s += LAST_RETRY_S
    await operator.make_pass(KEY)
    assert cluster.objects["Deployment", "team-ml", "simulated-engine"]["spec"]["replicas"] == 2
    assert condition(cluster, "Degraded")["reason"] != "Refused"
