"""The pass over one FairInferenceService: level-triggered, the same whatever happened.

    observe → judge → rehearse → desired → rotation → plan → apply → status

It looks at what is and at what is wanted, never at what changed; so it may be cut off anywhere and started again.
A pass over an unchanged service reads from memory and writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from evenkeel_contract.faults import Fault
from evenkeel_contract.names import (
    API_VERSION,
    ENGINE_COMPONENT,
    ENGINE_KEY_LABEL,
    ROUTER_COMPONENT,
    accepted_name,
    credentials_name,
    engine_name,
    router_name,
)
from evenkeel_kube.client import KubeClient

from evenkeel_operator import metrics
from evenkeel_operator.activation import Activations
from evenkeel_operator.autoscaler import Autoscaler
from evenkeel_operator.cluster.apply import Applier, Outcome
from evenkeel_operator.cluster.events import tell
from evenkeel_operator.cluster.observe import Observed, Observer
from evenkeel_operator.cluster.routers import Routers
from evenkeel_operator.cluster.store import SERVICE, Key, Store
from evenkeel_operator.core import reasons
from evenkeel_operator.core.accepted import Judgement, judge, last_good, read_accepted
from evenkeel_operator.core.conditions import Findings
from evenkeel_operator.core.credentials import (
    ROTATE_ANNOTATION,
    Credentials,
    next_credentials,
    read_credentials,
    recovered,
)
from evenkeel_operator.core.defaults import Defaults
from evenkeel_operator.core.objects import Object, Ref, annotations_of
from evenkeel_operator.core.plan import make_plan
from evenkeel_operator.core.scaling import Scaling, decide, foreign_scalers, surged
from evenkeel_operator.core.status import differs, service_status
from evenkeel_operator.core.tenants import make_roster
from evenkeel_operator.core.transitions import worth_telling
from evenkeel_operator.core.workload import Workload, workload
from evenkeel_operator.desired import Desired, Inputs, desired
from evenkeel_operator.rotation import Attended, Rotation

_log = logging.getLogger(__name__)

# While pods are not ready nobody tells us why, so their reasons are looked at: after this, and then each time after
# as long as it has been going on already, since what has not moved for an hour will hardly move in the next seconds.
UNSETTLED_S: Final = 15.0
# Watches miss what is deleted while they are down; so everything is listed afresh this often.
RESYNC_S: Final = 900.0

Clock = Callable[[], datetime]
"""The time of day, for conditions and events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What passes work with."""

    client: KubeClient
    store: Store
    observer: Observer
    applier: Applier
    routers: Routers
    activations: Activations
    autoscaler: Autoscaler
    defaults: Defaults
    clock: Clock
    monotonic_s: Callable[[], float]
    fresh: Callable[[], str]
    """A new secret, from a good source of chance."""


@dataclass(frozen=True, slots=True)
class _Rehearsal:
    """What the API server said of a spec that is not accepted yet. Asked once, and again when all is looked at afresh:
    what a policy or a webhook refused it may allow by then."""

    spec: Object
    faults: tuple[Fault, ...]
    at_s: float


class ServicePass:
    """Passes over FairInferenceServices."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._rotation = Rotation(
            means.client, means.store, means.observer, routers=means.routers, clock=means.clock
        )
        self._listed_s: dict[Key, float] = {}
        self._unsettled_s: dict[Key, float] = {}
        self._rehearsed: dict[Key, _Rehearsal] = {}

    async def __call__(self, key: Key) -> float | None:
        """One pass; when the next is due without any event. Raises `ClusterError`."""
        means = self._means
        # 1. Observe: the service, its objects, its tenants, their keys.
        seen = await means.observer.service(key, afresh=self._is_due_afresh(key))
        if seen is None or seen.is_leaving:
            self._forget(key)
            return None if seen is None else RESYNC_S

        # 2. Judge: the wanted spec, or the last good one. A new one is rehearsed before it may run.
        judgement = await self._judge(key, seen)
        scaling = await self._scaling(key, seen, judgement)

        # 3. Desired: all objects, and the secrets that nobody but us makes up.
        wanted = await self._desired(key, seen, judgement, scaling)

        # 4. Rotation: whose gate is opened, and who is to leave before there may be fewer.
        attended = await self._rotation.attend(key, seen, wanted)

        # 5. Plan and apply: nothing, where all is as it should be.
        outcome = await self._carry_out(key, seen, attended.wanted)

        # 6. Status, and a word to people where something changed.
        found = await self._findings(key, judgement, scaling, attended, outcome, seen.scalers)
        await self._report(key, seen.raw, found, judgement, scaling, attended.wanted, outcome)
        self._listen(key, seen, found)
        settled = found.engines.settled and found.routers.settled
        due_s = (self._rest_s(key, settled=settled), outcome.again_s, attended.again_s)
        return min(wait_s for wait_s in due_s if wait_s is not None)

    def _listen(self, key: Key, seen: Observed, found: Findings) -> None:
        """While no engine is ready, routers may want one."""
        credentials = read_credentials(seen.children.get(Ref("Secret", credentials_name(key.name))))
        if not found.wakes or found.engines.ready or credentials is None:
            self._means.activations.leave(key)
        else:
            self._means.activations.follow(key, token=credentials.admin_token)

    async def _carry_out(self, key: Key, seen: Observed, wanted: Desired | None) -> Outcome:
        if wanted is None:
            return Outcome()
        applier = self._means.applier
        plan = make_plan(
            wanted.manifests, seen.children, owner_uid=seen.uid, residue=applier.residue(key)
        )
        return await applier.carry_out(key, plan, owner_uid=seen.uid)

    def _rest_s(self, key: Key, *, settled: bool) -> float:
        if settled:
            self._unsettled_s.pop(key, None)
            return RESYNC_S
        now_s = self._means.monotonic_s()
        since_s = self._unsettled_s.setdefault(key, now_s)
        return min(RESYNC_S, max(UNSETTLED_S, now_s - since_s))

    async def _judge(self, key: Key, seen: Observed) -> Judgement:
        name = key.name
        accepted = read_accepted(seen.children.get(Ref("ConfigMap", accepted_name(name))))
        judgement = judge(seen.raw, accepted, self._means.defaults)
        if not judgement.is_new:
            self._rehearsed.pop(key, None)
            return judgement
        before = last_good(seen.raw, accepted)
        spec = seen.raw.get("spec") or {}
        known, now_s = self._rehearsed.get(key), self._means.monotonic_s()
        if known is None or known.spec != spec or now_s - known.at_s >= RESYNC_S:
            wanted = await self._desired(key, seen, judgement, decide(_spec_of(judgement)))
            objects = () if wanted is None else wanted.manifests
            faults = await self._means.applier.rehearse(objects, namespace=key.namespace)
            known = self._rehearsed[key] = _Rehearsal(spec, faults, now_s)
        return judgement.refused(known.faults, before) if known.faults else judgement

    async def _scaling(self, key: Key, seen: Observed, judgement: Judgement) -> Scaling:
        wanted = self._means.activations.wanted(key)
        decision = await self._means.autoscaler.attend(
            key, seen, judgement.running, activation=wanted
        )
        scaling = decide(_spec_of(judgement), decision)
        cordoned = self._means.store.cordoned
        if scaling.replicas != 1 or not cordoned:
            return scaling
        pods = await self._means.observer.pods(key, ENGINE_COMPONENT)
        return surged(scaling, pods, cordoned)

    async def _desired(
        self, key: Key, seen: Observed, judgement: Judgement, scaling: Scaling
    ) -> Desired | None:
        """All objects; None where nothing may be made."""
        if judgement.running is None or judgement.accepted is None:
            return None
        return desired(
            Inputs(
                service=judgement.running,
                uid=seen.uid,
                accepted=judgement.accepted,
                credentials=await self._credentials(key, seen),
                tenants=seen.tenants,
                roster=make_roster(seen.tenants, seen.secrets),
                config_before=seen.told,
                redis_url=await self._means.observer.redis_url(judgement.running),
                apis=self._means.observer.apis,
                defaults=self._means.defaults,
                replicas=scaling.replicas,
            )
        )

    async def _credentials(self, key: Key, seen: Observed) -> Credentials:
        ref = Ref("Secret", credentials_name(key.name))
        rotation = annotations_of(seen.raw).get(ROTATE_ANNOTATION, "")
        stored = read_credentials(seen.children.get(ref))
        if stored is None:
            # Never make up new keys on the word of a memory that may be stale, nor while the old ones are known.
            live = await self._means.client.get(ref.kind, key.namespace, ref.name)
            told = seen.told
            stored = read_credentials(live) or recovered(told, rotation=rotation)
        engines = seen.children.get(Ref("Deployment", engine_name(key.name)))
        return next_credentials(
            stored,
            rotation=rotation,
            old_keys_are_in_use=stored is not None and not _all_use(engines, stored.current.id),
            fresh=self._means.fresh,
        )

    async def _findings(
        self,
        key: Key,
        judgement: Judgement,
        scaling: Scaling,
        attended: Attended,
        outcome: Outcome,
        scalers: Sequence[Object],
    ) -> Findings:
        wanted = attended.wanted
        routers = judgement.running.spec.router.count if judgement.running else 0
        return Findings(
            faults=judgement.faults,
            runs=wanted is not None,
            engines=await self._workload(
                key, engine_name(key.name), ENGINE_COMPONENT, scaling.replicas, attended.pods
            ),
            routers=await self._workload(key, router_name(key.name), ROUTER_COMPONENT, routers),
            notes=(
                *outcome.notes,
                *attended.notes,
                *(wanted.notes if wanted else ()),
                *foreign_scalers(key.name, scalers),
            ),
            blocked=attended.blocked,
            wakes=_wakes(judgement),
            scaling=scaling.note,
            scales=scaling.decision is not None and scaling.decision.active,
        )

    async def _workload(
        self,
        key: Key,
        name: str,
        component: str,
        wanted: int,
        pods: Sequence[Object] | None = None,
    ) -> Workload:
        """`pods`: where somebody looked at them already."""
        deployment = self._means.store.children(key).items.get(Ref("Deployment", name))
        found = workload(deployment, wanted=wanted)
        if deployment is None or found.settled:
            return found
        if pods is None:
            pods = await self._means.observer.pods(key, component)
        return workload(deployment, wanted=wanted, pods=pods)

    async def _report(
        self,
        key: Key,
        raw: Object,
        found: Findings,
        judgement: Judgement,
        scaling: Scaling,
        wanted: Desired | None,
        outcome: Outcome,
    ) -> None:
        means = self._means
        now = means.clock()
        status = service_status(
            raw,
            found,
            running=judgement.running,
            image=wanted.image if wanted else None,
            available_image=wanted.available_image if wanted else None,
            decision=scaling.decision,
            now=now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        metrics.SERVICES.found(key.namespace, key.name, _figures(found, status))
        for change in outcome.reverted:
            await tell(
                means.client, raw, reason=reasons.REVERTED, message=change.why, bad=True, now=now
            )
        if not differs(status, raw):
            return
        answer = await means.client.apply_status(status_manifest(raw, status))
        means.store.named(SERVICE, key.namespace).put(answer)
        # Afterwards, or an operator that dies in between would tell the same again and get no further.
        for news in worth_telling(raw, status):
            await tell(
                means.client, raw, reason=news.reason, message=news.message, bad=news.bad, now=now
            )

    def _is_due_afresh(self, key: Key) -> bool:
        now_s = self._means.monotonic_s()
        due = key not in self._listed_s or now_s - self._listed_s[key] >= RESYNC_S
        if due:
            self._listed_s[key] = now_s
        return due

    def _forget(self, key: Key) -> None:
        self._means.store.forget(key)
        self._means.applier.forget(key)
        self._means.activations.leave(key)
        self._means.autoscaler.forget(key)
        metrics.SERVICES.gone(key.namespace, key.name)
        self._listed_s.pop(key, None)
        self._unsettled_s.pop(key, None)
        self._rehearsed.pop(key, None)


def status_manifest(raw: Object, status: dict[str, Any]) -> dict[str, Any]:
    """What is applied to `/status`."""
    metadata = {"name": raw["metadata"]["name"], "namespace": raw["metadata"]["namespace"]}
    return {"apiVersion": API_VERSION, "kind": raw["kind"], "metadata": metadata, "status": status}


def _figures(found: Findings, status: Mapping[str, Any]) -> metrics.ServiceFigures:
    loads = ((ENGINE_COMPONENT, found.engines), (ROUTER_COMPONENT, found.routers))
    return metrics.ServiceFigures(
        replicas={component: (load.wanted, load.ready) for component, load in loads},
        conditions=tuple(
            (one["type"], one["status"], one["reason"]) for one in status["conditions"]
        ),
    )


def _spec_of(judgement: Judgement) -> Any:
    return judgement.running.spec if judgement.running else None


def _wakes(judgement: Judgement) -> bool:
    spec = _spec_of(judgement)
    return spec is not None and spec.autoscaling is not None and spec.autoscaling.wakes


def _all_use(engines: Object | None, key_id: str) -> bool:
    """Whether every engine was started with the key."""
    if engines is None:
        return True
    spec = engines["spec"]
    label = (spec["template"]["metadata"].get("labels") or {}).get(ENGINE_KEY_LABEL)
    return label == key_id and workload(engines, wanted=spec.get("replicas", 1)).settled
