"""The state of a pass: what its steps add, and in which order the reasons of condition Degraded stand."""

from __future__ import annotations

from evenkeel_operator.cluster.apply import ApplyResult
from evenkeel_operator.cluster.observed import Observed
from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.records import SpecDecision
from evenkeel_operator.core.scaling import decide
from evenkeel_operator.core.sharding import Layout
from evenkeel_operator.desired import Desired
from evenkeel_operator.pass_state import PassState

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_lives import KEY, Operator, cluster_with_the_sample


async def observed(cluster: FakeCluster, key: Key) -> Observed:
    operator = Operator(cluster)
    seen = await operator.make_pass._deps.observer.service(key)
    assert seen is not None
    return seen


def note(what: str) -> Note:
    return Note(what, f"{what} is wrong.")


async def test_refused_writes_come_before_what_could_not_be_built_and_reports_last() -> None:
    seen = await observed(cluster_with_the_sample(), KEY)
    first = PassState(seen=seen, spec=SpecDecision((), None, None), scaling=decide(None))
    neighbours = first.with_notes([note("Pool")])
    built = neighbours.with_desired(Desired((), (note("Api"),), Layout("sha256:0"), image=None))
    applied = built.with_applied(ApplyResult(notes=[note("Write")], again_s=7.0))
    reported = applied.with_reported(inactive=("why",), notes=[note("Store")]).due(None).due(3.0)
    assert [one.reason for one in reported.notes] == ["Write", "Api", "Pool", "Store"]
    assert (reported.due_s, reported.inactive) == ((7.0, 3.0), ("why",))
    assert first.notes == ()  # each step made a copy
