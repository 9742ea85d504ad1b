"""The table of faults: what is done, how it ends, what names it, and what it means for people.

`do` returns the names of the pods whose processes it ended. Only their requests may be lost, and none by a planned change.
The texts are those of the page about failure modes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from e2e.faults import actions as act
from e2e.faults.stage import Stage

Action = Callable[[Stage], frozenset[str] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One fault or planned change."""

    name: str
    planned: bool = False
    """A planned change may lose no request; a crash only those on the processes that it ended."""
    do: Action
    hold_s: float = 0.0
    """How long it lasts at least."""
    undo: Callable[[Stage], None] = lambda stage: None
    service: str = "one"
    condition: tuple[str, str] | None = None
    """Type and reason, a regular expression, that names it."""
    alert: str = ""
    """The alert of a fault that a human must end."""
    users: str
    system: str
    human: str = "nothing"
    slow: bool = False
    """Only with `EVENKEEL_SLOW_FAULTS=1`."""


def _without_api(
    lasting: str, hold_s: float, *, alert: str = "", human: str = "nothing", slow: bool = False
) -> Scene:
    return Scene(
        name=f"API server gone for {lasting}",
        do=act.kill_api,
        hold_s=hold_s,
        undo=act.start_api,
        alert=alert,
        users="nothing",
        system="routers keep what they know; no change is applied",
        human=human,
        slow=slow,
    )


def _without_figures(
    how: str,
    do: Action,
    *,
    undo: Callable[[Stage], None] = act.good_figures,
    reason: str,
    human: str,
) -> Scene:
    return Scene(
        name=f"Prometheus {how}",
        do=do,
        undo=undo,
        condition=("ScalingActive", reason),
        alert="EvenkeelScalingInactive",
        users="nothing",
        system="the number of replicas stays",
        human=human,
    )


def _stuck_rollout(
    name: str, do: Action, undo: Callable[[Stage], None], *, system: str, human: str
) -> Scene:
    return Scene(
        name=name,
        do=do,
        undo=undo,
        condition=("Progressing", "RolloutStuck"),
        alert="EvenkeelRolloutStuck",
        users="nothing",
        system=f"old replicas serve; {system}",
        human=human,
    )


def _other_chart(what: str, do: Action, *, users: str) -> Scene:
    return Scene(
        name=f"{what} during a rollout",
        planned=True,
        do=do,
        undo=act.rollout_is_over,
        users=users,
        system="operator and routers are replaced; the rollout continues",
    )


SCENES: Final = (
    Scene(
        name="operator killed",
        do=act.kill_operator,
        undo=act.an_operator_leads,
        users="nothing",
        system="it restarts, or the other one takes over when the Lease expires",
    ),
    Scene(
        name="leader killed in the middle of a pass",
        do=act.kill_operator_in_a_pass,
        undo=act.the_pass_was_finished,
        users="nothing",
        system="the next leader finishes the change",
    ),
    Scene(
        name="router killed",
        do=act.kill_router,
        condition=("RouterReady", "Crashing|NotReady|Starting"),
        users="requests at this router end; new ones use another router",
        system="the kubelet restarts it; it reads the ledger of its peers",
    ),
    Scene(
        name="engine killed",
        do=act.kill_engine,
        condition=("EnginesReady", "Crashing|NotReady|NotInRotation"),
        users="streams on this engine end with an error event",
        system="waiting requests go to other replicas; the kubelet restarts it",
    ),
    Scene(
        name="kubelet killed for 30 s",
        do=act.kill_kubelet,
        hold_s=30,
        undo=act.start_kubelet,
        users="nothing",
        system="pods continue without it",
    ),
    Scene(
        name="containerd killed for 20 s",
        do=act.kill_containerd,
        hold_s=20,
        undo=act.start_containerd,
        users="nothing",
        system="pods continue without it",
    ),
    Scene(
        name="network of a node cut for 15 s",
        do=act.cut_node,
        hold_s=15,
        undo=act.join_node,
        users="requests through this node stop, and most continue afterwards",
        system="routers use the replicas that they reach",
    ),
    Scene(
        name="network of a node cut for 90 s",
        do=act.cut_node,
        hold_s=90,
        undo=act.join_node,
        condition=("EnginesReady", "NotReady|Starting|Unschedulable"),
        users="requests on this node end; new ones fail until Kubernetes notices",
        system="uses the other node; counts again what the cut replicas served",
    ),
    _without_api("30 s", 30),
    _without_api(
        "5 min",
        300,
        alert="EvenkeelOperatorDown",  # no operator can hold the Lease
        human="restores the API server",
        slow=True,
    ),
    Scene(
        name="etcd restarted",
        do=act.restart_etcd,
        users="nothing",
        system="watches are opened again",
    ),
    Scene(
        name="certificate of the API server rotated",
        planned=True,
        do=act.rotate_certificate,
        users="nothing",
        system="operator and routers connect again",
    ),
    Scene(
        name="Redis gone",
        do=act.kill_redis,
        undo=act.start_redis,
        condition=("Degraded", "StoreFails"),
        alert="EvenkeelLedgerStoreUnavailable",
        users="nothing",
        system="routers keep the ledger in memory and with their peers",
        human="restores Redis; routers write the ledger again",
    ),
    Scene(
        name="disk of a router's store full",
        service="filed",
        do=act.fill_disk,
        undo=act.free_disk,
        condition=("Degraded", "StoreFails"),
        alert="EvenkeelLedgerStoreUnavailable",
        users="nothing",
        system="the router keeps the ledger in memory",
        human="makes room on the volume",
    ),
    _without_figures(
        "gone",
        act.stop_figures,
        undo=act.start_figures,
        reason="PrometheusUnreachable",
        human="restores Prometheus",
    ),
    _without_figures(
        "slow",
        act.slow_figures,
        reason="PrometheusUnreachable",
        human="gives Prometheus more capacity",
    ),
    _without_figures(
        "stale",
        act.stale_figures,
        reason="DataStale",
        human="repairs the scraping of the routers",
    ),
    _without_figures(
        "answers NaN",
        act.nan_figures,
        reason="NotANumber",
        human="repairs the rules or the storage of Prometheus",
    ),
    Scene(
        name="clock of a node's pods an hour ahead",
        do=act.clock_ahead,
        hold_s=20,
        undo=act.clock_right,
        users="nothing",
        system="durations use the monotonic clock",
    ),
    _stuck_rollout(
        "bad image",
        act.bad_image,
        act.good_image,
        system="the rollout stops",
        human="sets the right image",
    ),
    _stuck_rollout(
        "image registry gone",
        act.registry_gone,
        act.registry_back,
        system="the rollout continues once images come",
        human="restores the registry",
    ),
    _stuck_rollout(
        "bad flag",
        act.bad_flag,
        act.good_flag,
        system="the rollout stops, with the engine's last words",
        human="corrects the flag",
    ),
    Scene(
        name="bad weight",
        do=act.bad_weight,
        users="nothing",
        system="the API server refuses it and names the field",
        human="corrects the weight",
    ),
    Scene(
        name="drain of the first node",
        planned=True,
        do=act.drain_first,
        undo=act.uncordon,
        users="nothing",
        system="engines and routers move one by one, after their requests",
    ),
    Scene(
        name="drain of the second node",
        planned=True,
        do=act.drain_second,
        undo=act.uncordon,
        users="nothing",
        system="engines and routers move one by one, after their requests",
    ),
    Scene(
        name="eviction of a router and an engine",
        planned=True,
        do=act.evict,
        users="nothing",
        system="each finishes its requests; others replace them",
    ),
    Scene(
        name="deletion of another namespace",
        planned=True,
        do=act.delete_namespace,
        undo=act.namespace_is_gone,
        users="nothing, at other services",
        system="its services end; the operator writes nothing there",
    ),
    Scene(
        name="keys rotated",
        planned=True,
        do=act.rotate_keys,
        undo=act.rollout_is_over,
        users="nothing",
        system="engines roll out; routers have both keys until the last",
    ),
    _other_chart(
        "return to the previous chart",
        act.previous_chart,
        users="nothing; with one router and store File, its operator ends the router before it starts the next: a gap of seconds",
    ),
    _other_chart("upgrade of the chart", act.present_chart, users="nothing"),
)
