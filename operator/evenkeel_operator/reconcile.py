"""The pass over one FairInferenceService. It is level-triggered: it compares observed and desired state, never events.

    revoke → observe → spec in use, dry run → model → scaling → desired → rotation → plan, apply → what routers report → status

A pass may stop anywhere and run again. A pass over an unchanged service reads from memory and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from evenkeel_contract.decode import to_plain
from evenkeel_contract.names import accepted_name, credentials_name, engine_name, router_name
from evenkeel_contract.render import tenants_namespace
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_contract.values import Fault
from evenkeel_kube.client import ApiError, KubeClient, Refused

from evenkeel_operator import metrics
from evenkeel_operator.autoscaler import Activations, Autoscaler, scale_external
from evenkeel_operator.cluster.apply import Applier, ApplyResult, is_lasting
from evenkeel_operator.cluster.downloads import Downloads
from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.observed import Observed
from evenkeel_operator.cluster.routers import Routers
from evenkeel_operator.cluster.store import Key, Store
from evenkeel_operator.core import reasons
from evenkeel_operator.core.neighbours import host_taken, missing_pool, with_pods
from evenkeel_operator.core.objects import Object, annotations_of
from evenkeel_operator.core.reasons import Note
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
from evenkeel_operator.core.roster import Roster
from evenkeel_operator.core.scaling import decide, foreign_scalers
from evenkeel_operator.core.sharding import Planner
from evenkeel_operator.core.status import Findings
from evenkeel_operator.core.tenants import lacks_label
from evenkeel_operator.core.workload import all_use_key
from evenkeel_operator.desired import Inputs, desired
from evenkeel_operator.model_cache import ModelCaches
from evenkeel_operator.pass_state import PassState
from evenkeel_operator.reported import Reports
from evenkeel_operator.reporting import Failures, Reporter
from evenkeel_operator.revocation import Revocation
from evenkeel_operator.rotation import Rotation

# No watch reports why pods are not ready, so they are listed: first after this time, then each time the duration of
# the rollout has doubled.
UNSETTLED_S: Final = 15.0
# Watches miss deletions while they are down, so everything is listed again this often.
RESYNC_S: Final = 900.0
# A spec that the API server could not check, for example because a webhook is down, is tried again this soon.
UNCHECKED_S: Final = 5.0
UNCHECKED: Final = "could not be checked, so it is not used yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of passes."""

    client: KubeClient
    store: Store
    observer: Observer
    applier: Applier
    routers: Routers
    downloads: Downloads
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
        given = self._deps = dependencies
        self._rotation = Rotation(
            given.client,
            given.store,
            routers=given.routers,
            clock=given.clock,
            replica_sets=given.observer.replica_sets,
        )
        self._reports = Reports(self._rotation.ask, given.monotonic_s)
        self._reporter = Reporter(given.store, given.observer, given.applier, clock=given.clock)
        self._failures = Failures(self._reporter)
        self._listed_s: dict[Key, float] = {}
        self._unsettled_s: dict[Key, float] = {}
        self._dry_runs: dict[Key, _DryRun] = {}
        self._planners: dict[Key, Planner] = {}
        self._caches = ModelCaches(given.downloads)
        self._revocation = Revocation(given.store, given.observer, given.applier)

    async def __call__(self, key: Key) -> float | None:
        """One pass. Returns the seconds until the next one without an event. Raises `ClusterError`, which is in the status then."""
        return await self._failures.watched(key, self._pass(key))

    async def _pass(self, key: Key) -> float | None:
        given = self._deps
        if key.namespace in given.store.terminating:
            self._forget(key)
            return None
        # 1. Revoke: routers lose what they must not accept, whatever fails later.
        notes = await self._revocation.attend(key)

        # 2. Observe: the service, its objects, what its routers have.
        now_s, relist = given.monotonic_s(), self._is_listing_due(key)
        seen = await given.observer.service(key, relist=relist)
        if relist:  # only now: a listing that was refused stays due
            self._listed_s[key] = now_s
        if seen is None or seen.is_leaving:
            self._forget(key)
            return None if seen is None else RESYNC_S

        # 3. Choose the spec: the newest, or the last valid one. A new one has a dry run first.
        state = (await self._choose(seen)).with_notes(notes)

        # The model: engines of the spec before serve until its files are there.
        state = await self._caches.attend(state)

        # 4. Scaling: the number of engines.
        state = await given.autoscaler.attend(
            state, activation=given.activations.wanted(key), cordoned=given.store.cordoned
        )

        # 5. Desired: all objects, generated keys included.
        state = await self._build(state)

        # 6. Rotation: open gates of new replicas, choose scale-down candidates.
        state = await self._rotation.attend(state)

        # 7. Plan and apply: writes nothing if nothing differs.
        state = await self._apply(state)

        # 8. Ask routers what engines and stores do.
        state = await self._reports.look(state)

        # 9. Status, and events for what changed.
        found = await self._reporter.report(state)
        self._follow(state, found)
        return min((self._rest_s(key, found), *state.due_s))

    async def _choose(self, seen: Observed) -> PassState:
        """The state of a pass with the spec in use and the faults of the newest one. Raises `ClusterError`."""
        accepted = read_accepted(seen.child("ConfigMap", accepted_name))
        live = seen.child("Service", engine_name)
        newest = with_pods(choose_spec(seen.raw, accepted, self._deps.defaults), seen.pools, live)
        if not newest.is_new:
            self._dry_runs.pop(seen.key, None)
            return _state(seen, newest)
        faults, again_s = await self._secret_faults(seen, newest), None
        if not faults and not newest.faults:
            try:
                faults = await self._try_out(_state(seen, newest))
            except ApiError as error:
                if not is_lasting(error):
                    raise
                faults, again_s = (Fault("spec", f"{UNCHECKED}: {error.message}"),), UNCHECKED_S
            if not faults:
                return _state(seen, newest)
        before = with_pods(last_good(seen.raw, accepted), seen.pools, live)
        return _state(seen, newest.refused(faults, before)).due(again_s)

    async def _try_out(self, state: PassState) -> tuple[Fault, ...]:
        """Refusals of the API server, asked once for each spec and again after `RESYNC_S`."""
        spec, now_s = state.raw.get("spec") or {}, self._deps.monotonic_s()
        known = self._dry_runs.get(state.key)
        if known is None or known.spec != spec or now_s - known.at_s >= RESYNC_S:
            built = (await self._build(state)).desired
            objects = () if built is None else built.manifests
            faults = await self._deps.applier.dry_run(objects, namespace=state.key.namespace)
            known = self._dry_runs[state.key] = _DryRun(spec, faults, now_s)
        return known.faults

    async def _secret_faults(self, seen: Observed, chosen: SpecDecision) -> tuple[Fault, ...]:
        """Faults of the Secrets that pods of a new spec would read. The other Secrets are reported in conditions."""
        if chosen.spec is None:
            return ()
        token, store = chosen.spec.model.token_secret_ref, chosen.spec.model.object_store
        bucket = None if store is None else store.secret_ref
        faults = []
        for path, ref in (("tokenSecretRef", token), ("objectStore.secretRef", bucket)):
            if ref is None:
                continue
            secret = await self._deps.observer.secret(seen.key.namespace, ref.name)
            if secret is not None and not secret.labelled:
                faults.append(Fault(f"spec.model.{path}", lacks_label(ref.name)))
        return tuple(faults)

    async def _build(self, state: PassState) -> PassState:
        """The pass with all objects, unless no valid spec is in use. Raises `ClusterError`."""
        service, accepted = state.spec.running, state.spec.accepted
        if service is None or accepted is None:
            return state
        seen = state.seen
        where = tenants_namespace(service)
        roster, refusal = await tenants_of(self._deps.observer, seen, where)
        built = desired(
            Inputs(
                service=service,
                uid=seen.uid,
                accepted=accepted,
                credentials=await self._credentials(seen),
                roster=roster,
                live=seen.live,
                planner=self._planners.setdefault(seen.key, Planner()),
                host_taken=self._host_taken(seen, service),
                redis_url=await self._deps.observer.values.redis_url(service),
                external_key=await self._deps.observer.values.external_key(service),
                cells=await self._deps.observer.values.cells(service),
                credential_secrets=await self._deps.observer.values.credentials(service),
                apis=self._deps.observer.apis - seen.forbidden,
                forbidden=self._deps.observer.apis & seen.forbidden,
                defaults=self._deps.defaults,
                replicas=state.scaling.replicas,
                fill=state.fill,
                behind=seen.behind,
                has_routers=seen.child("Deployment", router_name) is not None,
            )
        )
        return state.with_notes(refusal).with_desired(built)

    def _host_taken(self, seen: Observed, running: FairInferenceService) -> Note | None:
        """The spec in use counts, also where the newest one asks for no host."""
        exposed = {**seen.raw, "spec": {"exposure": to_plain(running.spec.exposure)}}
        others = self._deps.store.exposed_anywhere()
        return host_taken(exposed, others, default_class=self._deps.observer.default_class)

    async def _credentials(self, seen: Observed) -> Credentials:
        key, stored = seen.key, seen.credentials
        rotation = annotations_of(seen.raw).get(ROTATE_ANNOTATION, "")
        if stored is None:
            # The cache may be stale: generate new keys only if the API server has none either.
            live = await self._deps.client.get("Secret", key.namespace, credentials_name(key.name))
            stored = read_credentials(live) or recovered(seen.live.core, rotation=rotation)
        in_use = stored is not None and not all_use_key(seen.engines, stored.current.id)
        return next_credentials(
            stored, rotation=rotation, old_keys_are_in_use=in_use, fresh=self._deps.fresh
        )

    async def _apply(self, state: PassState) -> PassState:
        result = ApplyResult()
        if state.desired is not None:
            built = state.desired
            self._deps.observer.live_configs.laid_out(state.key, built.layout)
            result = await self._deps.applier.carry_out(state.seen, built.manifests, built.layout)
        result.notes += await scale_external(self._deps.client, state)
        return state.with_applied(result)

    def _follow(self, state: PassState, found: Findings) -> None:
        """While no engine is ready, ask routers whether requests wait for one."""
        seen = state.seen
        if not found.wakes or found.engines.ready or not seen.routers_token:
            self._deps.activations.leave(state.key)
        else:
            self._deps.activations.follow(
                state.key, token=seen.routers_token, service=seen.named_at_routers
            )

    def _rest_s(self, key: Key, found: Findings) -> float:
        if found.engines.settled and found.routers.settled:
            self._unsettled_s.pop(key, None)
            return RESYNC_S
        now_s = self._deps.monotonic_s()
        since_s = self._unsettled_s.setdefault(key, now_s)
        return min(RESYNC_S, max(UNSETTLED_S, now_s - since_s))

    def _is_listing_due(self, key: Key) -> bool:
        now_s = self._deps.monotonic_s()
        return key not in self._listed_s or now_s - self._listed_s[key] >= RESYNC_S

    def list_again(self, namespace: str) -> None:
        """The next pass over each service of a namespace lists its objects: watches may have missed deletions."""
        for key in [key for key in self._listed_s if key.namespace == namespace]:
            del self._listed_s[key]

    def _forget(self, key: Key) -> None:
        self._deps.store.forget(key)
        self._deps.applier.forget(key)
        self._deps.activations.leave(key)
        self._deps.autoscaler.forget(key)
        self._reports.forget(key)
        self._reporter.forget(key)
        metrics.SERVICES.gone(key.namespace, key.name)
        self._listed_s.pop(key, None)
        self._unsettled_s.pop(key, None)
        self._dry_runs.pop(key, None)
        self._planners.pop(key, None)
        self._revocation.forget(key)


async def tenants_of(
    observer: Observer, seen: Observed, where: str
) -> tuple[Roster, tuple[Note, ...]]:
    """The tenants of a service or a gateway. Those of another namespace that cannot be read stay as routers know them."""
    try:
        return await observer.roster(where, of=seen.key), ()
    except Refused as error:
        if where == seen.key.namespace:
            raise
        message = (
            f"spec.tenancy.namespace: {error.message}. Routers keep the tenants that they know."
        )
        known = Roster.unreadable(where, (grant.config for grant in seen.live.grants))
        return known, (Note(reasons.RIGHT_MISSING, message),)


def _state(seen: Observed, chosen: SpecDecision) -> PassState:
    state = PassState(seen=seen, spec=chosen, scaling=decide(chosen.spec))
    scalers = foreign_scalers(seen.key.name, seen.scalers, state.scale_target)
    return state.with_notes((*scalers, *missing_pool(chosen.external, seen.pools)))
