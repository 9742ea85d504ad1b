"""A day of a scaled service in a few minutes of its own time: every field of `spec.autoscaling` changes how it goes."""

from __future__ import annotations

from typing import Any, Final

from evenkeel_operator.autoscaler import INTERVAL_S
from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core.recommendation import Answers

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_prometheus import answers
from tests.support.operator_lives import Operator, become_ready

_EVERYBODY: Final = {("ads", "chat"): 1e9, **{(f"stranger-{n}", "x"): 1e9 for n in range(9)}}
_A_LITTLE: Final = {one: 10.0 for one in _EVERYBODY}
SCENES: Final[tuple[Answers, ...]] = (
    answers(_EVERYBODY),
    answers(),
    answers(
        {("ads", "chat"): 60_000.0}
    ),  # four replicas of 20k, of which three quarters are usable
    answers({("ads", "chat"): 1e9}),  # one greedy client
    answers(_A_LITTLE, queue=2.5),
    answers(),
    answers(_A_LITTLE, ttft=2.0),
)
"""What Prometheus says, one after another."""
SCENE_LOOKS: Final = 32
"""Eight minutes: longer than any window of the sample."""


async def live_through(cluster: FakeCluster, operator: Operator, key: Key) -> dict[str, Any]:
    """The replicas after every look, and what was asked of whom."""
    counts: list[int] = []
    for scene in SCENES:
        operator.prometheus.answers = scene
        for _ in range(SCENE_LOOKS):
            operator.now_s += INTERVAL_S
            operator.woken.clear()
            await operator.autoscaler.look(key)
            if operator.woken:
                await operator.make_pass(key)
                for item in become_ready(cluster):
                    operator.store.see("MODIFIED", str(item["kind"]), item)  # the next pass uses it
            counts.append(_replicas(cluster, key))
    sources = operator.prometheus.sources
    return {
        "replicas over time": counts,
        "Prometheus url": sorted({one.url for one in sources}),
        "Prometheus token": sorted({one.token or "" for one in sources}),
    }


def _replicas(cluster: FakeCluster, key: Key) -> int:
    engines = cluster.objects.get(("Deployment", key.namespace, f"{key.name}-engine"))
    if engines is None:  # another owner made them
        return sum(cluster.scales.values())
    return int(engines["spec"]["replicas"])
