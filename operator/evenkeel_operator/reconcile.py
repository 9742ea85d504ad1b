"""The pass over one FairInferenceService. It is level-triggered: it compares observed and desired state, never events.

    observe → choose the spec → dry run → desired → rotation → plan → apply → status

A pass may stop anywhere and run again. A pass over an unchanged service reads from memory and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from evenkeel_contract.names import (
    API_VERSION,
    ENGINE_COMPONENT,
    ROUTER_COMPONENT,
    accepted_name,
    credentials_name,
    engine_name,
    router_name,
)
from evenkeel_contract.routerconfig import StateStore
from evenkeel_contract.values import Fault
from evenkeel_kube.client import KubeClient

from evenkeel_operator import metrics
from evenkeel_operator.autoscaler import Activations, Autoscaler, scale_external, scale_target
from evenkeel_operator.cluster.apply import Applier, ApplyResult, emit
from evenkeel_operator.cluster.observe import Observed, Observer
from evenkeel_operator.cluster.routers import Routers
from evenkeel_operator.cluster.store import Key, Store
from evenkeel_operator.core import reasons
from evenkeel_operator.core.neighbours import host_taken, missing_pool, with_pods
from evenkeel_operator.core.objects import Object, Ref, annotations_of, make_plan
from evenkeel_operator.core.records import (
    ROTATE_ANNOTATION,
    Credentials,
    Defaults,
    SpecDecision,
    choose_spec,
    last_good,
    next_credentials,
    read_accepted,
    read_credentials,
    recovered,
)
from evenkeel_operator.core.scaling import Scaling, decide, foreign_scalers, surged
from evenkeel_operator.core.status import EventText, Findings, differs, events_for, service_status
from evenkeel_operator.core.tenants import accepted_keys, lacks_label, make_roster
from evenkeel_operator.core.workload import (
    STUCK,
    TIME_FORMAT,
    Workload,
    all_use_key,
    newest_template,
    workload,
)
from evenkeel_operator.desired import Desired, Inputs, desired
from evenkeel_operator.reported import Reported, Reports
from evenkeel_operator.rotation import Attended, Rotation

# No watch reports why pods are not ready, so they are listed: first after this time, then each time the duration of
# the rollout has doubled.
UNSETTLED_S: Final = 15.0
# Watches miss deletions while they are down, so everything is listed again this often.
RESYNC_S: Final = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of passes."""

    client: KubeClient
    store: Store
    observer: Observer
    applier: Applier
    routers: Routers
    activations: Activations
    autoscaler: Autoscaler
    defaults: Defaults
    clock: Callable[[], datetime]
    """The time of day in UTC, for conditions and events."""
    monotonic_s: Callable[[], float]
    fresh: Callable[[], str]
    """Returns a new random secret."""


@dataclass(frozen=True, slots=True)
class _DryRun:
    """The result of the dry run of a new spec. Repeated with each full listing: a policy may allow the spec by then."""

    spec: Object
    faults: tuple[Fault, ...]
    at_s: float


class ServicePass:
    """Passes over FairInferenceServices."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._deps = dependencies
        self._rotation = Rotation(
            dependencies.client,
            dependencies.store,
            routers=dependencies.routers,
            clock=dependencies.clock,
        )
        self._reports = Reports(self._rotation.ask)
        self._listed_s: dict[Key, float] = {}
        self._unsettled_s: dict[Key, float] = {}
        self._dry_runs: dict[Key, _DryRun] = {}

    async def __call__(self, key: Key) -> float | None:
        """One pass. Returns the seconds until the next one without an event. Raises `ClusterError`."""
        dependencies = self._deps
        if key.namespace in dependencies.store.terminating:
            self._forget(key)
            return None
        # 1. Observe: the service, its objects, its tenants, their keys.
        seen = await dependencies.observer.service(key, relist=self._is_listing_due(key))
        if seen is None or seen.is_leaving:
            self._forget(key)
            return None if seen is None else RESYNC_S

        # 2. Choose the spec: the newest, or the last valid one. A new one has a dry run first.
        spec_decision = await self._choose_spec(key, seen)
        scaling = await self._scaling(key, seen, spec_decision)

        # 3. Desired: all objects, generated keys included.
        wanted = await self._desired(key, seen, spec_decision, scaling)

        # 4. Rotation: open gates of new replicas, choose scale-down candidates.
        attended = await self._rotation.attend(key, seen, wanted)

        # 5. Plan and apply: writes nothing if nothing differs.
        outcome = await self._carry_out(key, seen, attended.wanted)
        outcome.notes += await scale_external(
            dependencies.client, key, scale_target(spec_decision), scaling
        )

        # 6. Status, and events for what changed.
        reported = await self._reports.look(key, seen, has_store=_has_store(spec_decision))
        found = await self._findings(key, spec_decision, scaling, attended, outcome, seen, reported)
        await self._report(key, seen.raw, found, spec_decision, attended.wanted, outcome)
        self._listen(key, seen, found)
        settled = found.engines.settled and found.routers.settled
        rest_s = self._rest_s(key, settled=settled)
        due_s = (rest_s, outcome.again_s, attended.again_s, reported.again_s)
        return min(wait_s for wait_s in due_s if wait_s is not None)

    def _listen(self, key: Key, seen: Observed, found: Findings) -> None:
        """While no engine is ready, ask routers whether requests wait for one."""
        if not found.wakes or found.engines.ready or seen.credentials is None:
            self._deps.activations.leave(key)
        else:
            self._deps.activations.follow(key, token=seen.credentials.admin_token)

    async def _carry_out(self, key: Key, seen: Observed, wanted: Desired | None) -> ApplyResult:
        if wanted is None:
            return ApplyResult()
        applier = self._deps.applier
        plan = make_plan(
            wanted.manifests, seen.children, owner_uid=seen.uid, residue=applier.residue(key)
        )
        return await applier.carry_out(key, plan, owner_uid=seen.uid)

    def _rest_s(self, key: Key, *, settled: bool) -> float:
        if settled:
            self._unsettled_s.pop(key, None)
            return RESYNC_S
        now_s = self._deps.monotonic_s()
        since_s = self._unsettled_s.setdefault(key, now_s)
        return min(RESYNC_S, max(UNSETTLED_S, now_s - since_s))

    async def _choose_spec(self, key: Key, seen: Observed) -> SpecDecision:
        name = key.name
        accepted = read_accepted(seen.children.get(Ref("ConfigMap", accepted_name(name))))
        live = seen.children.get(Ref("Service", engine_name(name)))
        chosen = choose_spec(seen.raw, accepted, self._deps.defaults)
        spec_decision = with_pods(chosen, seen.pools, live)
        if not spec_decision.is_new:
            self._dry_runs.pop(key, None)
            return spec_decision
        before = with_pods(last_good(seen.raw, accepted), seen.pools, live)
        faults = await self._secret_faults(key, spec_decision)
        if faults or spec_decision.faults:
            return spec_decision.refused(faults, before)
        spec = seen.raw.get("spec") or {}
        known, now_s = self._dry_runs.get(key), self._deps.monotonic_s()
        if known is None or known.spec != spec or now_s - known.at_s >= RESYNC_S:
            wanted = await self._desired(key, seen, spec_decision, decide(spec_decision.spec))
            objects = () if wanted is None else wanted.manifests
            faults = await self._deps.applier.dry_run(objects, namespace=key.namespace)
            known = self._dry_runs[key] = _DryRun(spec, faults, now_s)
        return spec_decision.refused(known.faults, before) if known.faults else spec_decision

    async def _secret_faults(self, key: Key, spec_decision: SpecDecision) -> tuple[Fault, ...]:
        """Of a Secret that pods of a new spec would read. The other Secrets are reported in conditions."""
        spec = spec_decision.spec
        ref = None if spec is None else spec.model.token_secret_ref
        if ref is None:
            return ()
        secret = await self._deps.observer.secret(key.namespace, ref.name)
        if secret is None or secret.labelled:
            return ()
        return (Fault("spec.model.tokenSecretRef", lacks_label(ref.name)),)

    async def _scaling(self, key: Key, seen: Observed, spec_decision: SpecDecision) -> Scaling:
        wanted = self._deps.activations.wanted(key)
        decision = await self._deps.autoscaler.attend(
            key, seen, spec_decision.running, activation=wanted
        )
        scaling = decide(spec_decision.spec, decision)
        cordoned = self._deps.store.cordoned
        if scaling.replicas != 1 or not cordoned or spec_decision.external is not None:
            return scaling
        return surged(scaling, await seen.pods.of(ENGINE_COMPONENT), cordoned)

    async def _desired(
        self, key: Key, seen: Observed, spec_decision: SpecDecision, scaling: Scaling
    ) -> Desired | None:
        """All objects; None if no valid spec is in use."""
        if spec_decision.running is None or spec_decision.accepted is None:
            return None
        return desired(
            Inputs(
                service=spec_decision.running,
                uid=seen.uid,
                accepted=spec_decision.accepted,
                credentials=await self._credentials(key, seen),
                tenants=seen.tenants,
                roster=make_roster(
                    seen.tenants, seen.secrets, known=accepted_keys(seen.router_config)
                ),
                config_before=seen.router_config,
                host_taken=host_taken(seen.raw, self._deps.store.services_anywhere()),
                redis_url=await self._deps.observer.redis_url(spec_decision.running),
                external_key=await self._deps.observer.external_key(spec_decision.running),
                apis=self._deps.observer.apis,
                defaults=self._deps.defaults,
                replicas=scaling.replicas,
            )
        )

    async def _credentials(self, key: Key, seen: Observed) -> Credentials:
        rotation = annotations_of(seen.raw).get(ROTATE_ANNOTATION, "")
        stored = seen.credentials
        if stored is None:
            # The cache may be stale: generate new keys only if the API server has none either.
            live = await self._deps.client.get("Secret", key.namespace, credentials_name(key.name))
            stored = read_credentials(live) or recovered(seen.router_config, rotation=rotation)
        in_use = stored is not None and not all_use_key(seen.engines, stored.current.id)
        return next_credentials(
            stored, rotation=rotation, old_keys_are_in_use=in_use, fresh=self._deps.fresh
        )

    async def _findings(
        self,
        key: Key,
        spec_decision: SpecDecision,
        scaling: Scaling,
        attended: Attended,
        outcome: ApplyResult,
        seen: Observed,
        reported: Reported,
    ) -> Findings:
        wanted = attended.wanted
        routers = spec_decision.running.spec.router.count if spec_decision.running else 0
        if spec_decision.external is not None:
            engines = await self._deps.observer.external_engines(key)
        else:
            engines = await self._workload(key, seen, ENGINE_COMPONENT, scaling.replicas)
        return Findings(
            faults=spec_decision.faults,
            runs=wanted is not None,
            engines=engines,
            routers=await self._workload(key, seen, ROUTER_COMPONENT, routers),
            notes=(
                *outcome.notes,
                *attended.notes,
                *(wanted.notes if wanted else ()),
                *foreign_scalers(key.name, seen.scalers, scale_target(spec_decision)),
                *missing_pool(spec_decision.external, seen.pools),
                *reported.notes,
            ),
            blocked=attended.blocked,
            wakes=_wakes(spec_decision),
            inactive=reported.inactive,
            scaling=scaling,
        )

    async def _workload(self, key: Key, seen: Observed, component: str, wanted: int) -> Workload:
        name_of = engine_name if component == ENGINE_COMPONENT else router_name
        ref = Ref("Deployment", name_of(key.name))
        deployment = self._deps.store.children(key).items.get(ref)
        found = workload(deployment, wanted=wanted)
        if deployment is None or found.settled:
            return found
        pods = await seen.pods.of(component)
        found = workload(deployment, wanted=wanted, pods=pods)
        if found.failure is None or found.failure.reason not in STUCK:
            return found
        replica_sets = await self._deps.observer.replica_sets(key, component)
        newest = newest_template(replica_sets, deployment)
        return workload(deployment, wanted=wanted, pods=pods, newest=newest)

    async def _report(
        self,
        key: Key,
        raw: Object,
        found: Findings,
        spec_decision: SpecDecision,
        wanted: Desired | None,
        outcome: ApplyResult,
    ) -> None:
        dependencies = self._deps
        now = dependencies.clock()
        status = service_status(
            raw,
            found,
            running=spec_decision.running,
            image=wanted.image if wanted else None,
            available_image=wanted.available_image if wanted else None,
            host_taken=wanted is not None and wanted.host_taken,
            now=now.strftime(TIME_FORMAT),
        )
        metrics.SERVICES.found(key.namespace, key.name, found, status)
        for change in outcome.reverted:
            reverted = EventText(reasons.REVERTED, change.why, bad=True)
            await emit(dependencies.client, raw, reverted, now=now)
        if await write_status(dependencies, key, raw, status):
            # After the status: an operator that stops in between would otherwise repeat the events forever.
            for news in events_for(raw, status):
                await emit(dependencies.client, raw, news, now=now)

    def _is_listing_due(self, key: Key) -> bool:
        now_s = self._deps.monotonic_s()
        due = key not in self._listed_s or now_s - self._listed_s[key] >= RESYNC_S
        if due:
            self._listed_s[key] = now_s
        return due

    def _forget(self, key: Key) -> None:
        self._deps.store.forget(key)
        self._deps.applier.forget(key)
        self._deps.activations.leave(key)
        self._deps.autoscaler.forget(key)
        self._reports.forget(key)
        metrics.SERVICES.gone(key.namespace, key.name)
        self._listed_s.pop(key, None)
        self._unsettled_s.pop(key, None)
        self._dry_runs.pop(key, None)


async def write_status(
    dependencies: Dependencies, key: Key, raw: Object, status: dict[str, Any]
) -> bool:
    """Write the status of the object `raw` if it differs; returns whether it did. Raises `ClusterError`."""
    if not differs(status, raw):
        return False
    metadata = {"name": key.name, "namespace": key.namespace}
    head = {"apiVersion": API_VERSION, "kind": key.kind, "metadata": metadata}
    answer = await dependencies.client.apply_status({**head, "status": status})
    dependencies.store.named(key.kind, key.namespace).put(answer)
    return True


def _has_store(spec_decision: SpecDecision) -> bool:
    """Whether routers keep the ledger in a file or a server."""
    spec = spec_decision.spec
    return spec is not None and spec.router.state.store is not StateStore.PEERS


def _wakes(spec_decision: SpecDecision) -> bool:
    spec = spec_decision.spec
    return spec is not None and spec.autoscaling is not None and spec.autoscaling.wakes
