"""Write what a pass found: metrics, the status of the service, and events for what changed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from evenkeel_contract.names import (
    ENGINE_COMPONENT,
    ROUTER_COMPONENT,
    engine_name,
    router_name,
)
from evenkeel_kube.client import ClusterError, Refused

from evenkeel_operator import metrics
from evenkeel_operator.cluster.apply import Applier, note_of
from evenkeel_operator.cluster.object_table import FOREIGN
from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.observed import Observed
from evenkeel_operator.cluster.store import GATEWAY, Key, Store
from evenkeel_operator.core import reasons
from evenkeel_operator.core.events import EventText, events_for
from evenkeel_operator.core.objects import Ref
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.status import Findings, failed_status, service_status
from evenkeel_operator.core.workload import (
    STUCK,
    TIME_FORMAT,
    Workload,
    newest_template,
    workload,
)
from evenkeel_operator.pass_state import PassState

_log = logging.getLogger(__name__)


class Reporter:
    """Reports on all services."""

    def __init__(
        self, store: Store, observer: Observer, applier: Applier, *, clock: Callable[[], datetime]
    ) -> None:
        """`clock`: the time of day in UTC."""
        self._store = store
        self._observer = observer
        self._applier = applier
        self._clock = clock
        self._foreign: dict[Key, frozenset[str]] = {}
        """Service → what was said of fields that others added."""

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._foreign.pop(key, None)

    async def report(self, state: PassState) -> Findings:
        """Write metrics, status and events; returns the findings. Raises `ClusterError`."""
        found = await self._findings(state)
        now, desired, seen = self._clock(), state.desired, state.seen
        status = service_status(
            state.raw,
            found,
            running=state.spec.running,
            image=desired.image if desired else None,
            available_image=desired.available_image if desired else None,
            host_taken=desired is not None and desired.host_taken,
            gateway_url=None if seen.pods.behind is None else seen.pods.behind.url,
            now=now.strftime(TIME_FORMAT),
        )
        metrics.SERVICES.found(state.key.namespace, state.key.name, found, status)
        for change in state.reverted:
            reverted = EventText(reasons.REVERTED, change.why, bad=True)
            await self._applier.emit(state.raw, reverted, now=now)
        await self._report_foreign(state, now)
        if await self._applier.write_status(state.key, state.raw, status):
            # After the status: an operator that stops in between would otherwise repeat the events forever.
            for news in events_for(state.raw, status):
                await self._applier.emit(state.raw, news, now=now)
        return found

    async def _report_foreign(self, state: PassState, now: datetime) -> None:
        """One event for each object with fields that others added since the last pass. They stay: a later owner may need them."""
        children = self._store.children(state.key).items
        found = {
            f"{ref}: {field}"
            for ref, item in children.items()
            for field in item["metadata"].get(FOREIGN, ())
        }
        new = found - self._foreign.get(state.key, frozenset())
        self._foreign[state.key] = frozenset(found)
        if new:
            message = f"Fields that Evenkeel does not set, by manager: {'; '.join(sorted(new))}. They stay until they are removed."
            await self._applier.emit(
                state.raw, EventText(reasons.FOREIGN_FIELD, message, bad=True), now=now
            )

    async def report_failure(self, key: Key, why: Note) -> None:
        """Write why a pass failed into the status. A failure of that is only logged."""
        raw = self._store.named(key.kind, key.namespace).items.get(key.name)
        if raw is None:
            return
        now = self._clock()
        status = failed_status({**raw, "kind": key.kind}, why, now=now.strftime(TIME_FORMAT))
        try:
            if await self._applier.write_status(key, raw, status):
                for news in events_for(raw, status):
                    await self._applier.emit(raw, news, now=now)
        except ClusterError as error:
            _log.warning("%s: cannot report that a pass failed: %s", key, error)

    async def _findings(self, state: PassState) -> Findings:
        seen, running = state.seen, state.spec.running
        routers = running.spec.router.count if running else 0
        if state.is_external:
            engines = await self._observer.external_engines(state.key)
        else:
            engines = await self._workload(seen, ENGINE_COMPONENT, state.scaling.replicas)
        return Findings(
            faults=state.spec.faults,
            runs=state.desired is not None,
            engines=engines,
            routers=await self.routers(seen, routers),
            notes=state.notes,
            blocked=state.blocked,
            wakes=state.wakes,
            inactive=state.inactive,
            scaling=state.scaling,
            model=state.model,
            fill=0.0 if state.desired is None else state.desired.layout.fill,
        )

    async def routers(self, seen: Observed, wanted: int) -> Workload:
        """The routers that serve a service or a gateway: its own, or those of its gateway."""
        behind = seen.pods.behind
        if behind is None:
            return await self._workload(seen, ROUTER_COMPONENT, wanted)
        key = Key(GATEWAY, seen.key.namespace, behind.gateway)
        ref = Ref("Deployment", router_name(behind.base))
        deployment = self._store.children(key).get(ref)
        wanted = 0 if deployment is None else int(deployment["spec"].get("replicas", 1))
        found = workload(deployment, wanted=wanted)
        if deployment is None or found.settled:
            return found
        return workload(deployment, wanted=wanted, pods=await seen.pods.of(ROUTER_COMPONENT))

    async def _workload(self, seen: Observed, component: str, wanted: int) -> Workload:
        name_of = engine_name if component == ENGINE_COMPONENT else router_name
        # The apply step has put its answer into the store.
        ref = Ref("Deployment", name_of(seen.key.base))
        deployment = self._store.children(seen.key).get(ref)
        found = workload(deployment, wanted=wanted)
        if deployment is None or found.settled:
            return found
        pods = await seen.pods.of(component)
        waits = await seen.pods.unstarted(pods, now=self._clock())
        found = workload(deployment, wanted=wanted, pods=pods, unstarted=waits)
        if found.failure is None or found.failure.reason not in STUCK:
            return found
        replica_sets = await self._observer.replica_sets(seen.key, component)
        newest = newest_template(replica_sets, deployment)
        return workload(deployment, wanted=wanted, pods=pods, newest=newest, unstarted=waits)


class Failures:
    """Consecutive failures of passes. A transient one is reported if the next pass fails too."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._failing: set[Key] = set()

    async def watched(self, key: Key, one_pass: Awaitable[float | None]) -> float | None:
        """The result of one pass. Raises `ClusterError`, which is in the status then."""
        try:
            after_s = await one_pass
        except ClusterError as error:
            await self._failed(key, error)
            raise
        self._failing.discard(key)
        return after_s

    async def _failed(self, key: Key, error: ClusterError) -> None:
        if key in self._failing or isinstance(error, Refused):
            await self._reporter.report_failure(key, note_of(error))
        self._failing.add(key)
