"""The number of replicas between passes: the built-in scaler, and activation of services without a ready engine.

The scaler queries Prometheus at intervals, so that every pass finds a decision in memory and none waits for Prometheus.
State is kept in memory only: a new operator starts from the replicas that exist, and does not shrink before the window
of `scaleDown` is over.

Activation asks routers whether requests wait for the first replica (design §6). A long poll is open to each ready
router of such a service, and a change triggers a pass. It needs no write, no Prometheus and no right on the API server.
It lasts until an engine is ready, not until one is started. Otherwise a scaler that sees no load would remove the
replica that requests wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final

from evenkeel_contract.names import ENGINE_COMPONENT, ROUTER_COMPONENT
from evenkeel_contract.spec.autoscaling import Prometheus
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_kube.client import ApiError, ClusterError, KubeClient

from evenkeel_operator.cluster.apply import is_lasting, note_of
from evenkeel_operator.cluster.observe import Observer
from evenkeel_operator.cluster.observed import Observed
from evenkeel_operator.cluster.prometheus import PrometheusClient, PrometheusError, Source
from evenkeel_operator.cluster.routers import Routers, addresses_of_ready
from evenkeel_operator.cluster.store import SERVICE, Key
from evenkeel_operator.core import reasons
from evenkeel_operator.core.neighbours import target_taken
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.recommendation import (
    LABELS,
    Measurements,
    labels_query,
    measurements,
    parts_of,
    queries,
    without_series,
)
from evenkeel_operator.core.records import Defaults, may_be_asked
from evenkeel_operator.core.scaling import (
    Decision,
    ScalerState,
    Terms,
    decide,
    started,
    step,
    surged,
)
from evenkeel_operator.core.workload import workload
from evenkeel_operator.pass_state import PassState

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 15.0
"""Interval between queries, equal to that of the HorizontalPodAutoscaler."""
NOT_YET: Final = Note(reasons.NO_DATA_YET, "This operator has not queried Prometheus yet.")


@dataclass(slots=True)
class _Scaled:
    terms: Terms
    """What the last pass knew about the service."""
    source: Source | Note
    """A note: why it must not be queried, or cannot be."""
    state: ScalerState
    seen: Measurements | Note
    decision: Decision


class Autoscaler:
    """Scales all services."""

    def __init__(
        self,
        prometheus: PrometheusClient,
        observer: Observer,
        defaults: Defaults,
        *,
        monotonic_s: Callable[[], float],
        wake: Callable[[Key], None],
        look_at: Callable[[Key], None],
    ) -> None:
        """`wake` requests a pass. `look_at` requests a call of `look`: the service or its Prometheus is new."""
        self._prometheus = prometheus
        self._observer = observer
        self._defaults = defaults
        self._monotonic_s = monotonic_s
        self._wake = wake
        self._look_at = look_at
        self._services: dict[Key, _Scaled] = {}

    async def attend(
        self, state: PassState, *, activation: bool, cordoned: Collection[str]
    ) -> PassState:
        """The pass with the number of engines to run. Raises `ClusterError`.

        `activation`: requests wait for the first one. `cordoned`: names of nodes.
        """
        target = await self._target(state)
        decision = await self._decision(state, activation=activation, target=target)
        scaling = decide(state.spec.spec, decision)
        if scaling.replicas == 1 and cordoned and not state.is_external:
            scaling = surged(scaling, await state.seen.pods.of(ENGINE_COMPONENT), cordoned)
        # No watch reports a label of the target, or that another service scales it no more.
        again_s = INTERVAL_S if isinstance(target, Note) else None
        return state.with_scaling(scaling, target).due(again_s)

    async def _target(self, state: PassState) -> int | Note | None:
        """The replicas that the object of another owner asks for; a note if it must not be scaled, None if there is none."""
        ref, namespace = state.scale_target, state.key.namespace
        if ref is None:
            return None
        services = await self._observer.all_of(SERVICE, namespace)
        taken = target_taken(state.raw, ref, services)
        return taken or await self._observer.scale_target(namespace, ref)

    async def _decision(
        self, state: PassState, *, activation: bool, target: int | Note | None
    ) -> Decision | None:
        """The scaler's present decision; None if the service is not to be scaled. `target`: see `Observer.scale_target`."""
        service, seen = state.spec.running, state.seen
        scaling = service.spec.autoscaling if service else None
        if service is None or scaling is None:
            self.forget(state.key)
            return None
        ready, live = await self._fleet(seen, service)
        terms = Terms(
            scaling=scaling,
            parts=parts_of(grant.config for grant in seen.live.grants),
            ready=ready,
            activation=activation,
        )
        if isinstance(target, Note):
            source: Source | Note = target
        else:
            source = await self._source(state.key, scaling.prometheus)
            live = live if target is None else target
        live = scaling.min_replicas if live is None else live
        return self._decided(state.key, terms, source, live=live)

    async def _fleet(self, seen: Observed, service: FairInferenceService) -> tuple[int, int | None]:
        """(ready replicas, replicas that are asked for; None if they do not exist yet)."""
        external = service.spec.engine.pods_of_others
        if external is not None:
            engines = await self._observer.external_engines(seen.key)
            return engines.ready, engines.wanted
        live = None if seen.engines is None else int(seen.engines["spec"].get("replicas", 1))
        return workload(seen.engines, wanted=0).ready, live

    def _decided(self, key: Key, terms: Terms, source: Source | Note, *, live: int) -> Decision:
        known = self._services.get(key)
        if known is None or known.source != source:
            # Measurements of another Prometheus do not count.
            state = started(live, now_s=self._monotonic_s()) if known is None else known.state
            seen = source if isinstance(source, Note) else NOT_YET
            self._services[key] = self._stepped(terms, source, state, seen)
            self._look_at(key)
        elif _matters(known.terms, terms):
            self._services[key] = self._stepped(terms, source, known.state, known.seen)
        else:
            known.terms = terms
        return self._services[key].decision

    async def _source(self, key: Key, spec: Prometheus) -> Source | Note:
        """The address to query. A spec in use may be older than the operator's settings."""
        if not may_be_asked(spec.url, self._defaults):
            message = "spec.autoscaling.prometheus.url: the operator's --allow-prometheus does not allow this address."
            return Note(reasons.NOT_ALLOWED, message)
        ref = spec.token_secret_ref
        if ref is None:
            return Source(spec.url)
        token = await self._observer.values.entry(key.namespace, ref)
        if isinstance(token, Note):
            path = "spec.autoscaling.prometheus.tokenSecretRef"
            return Note(token.reason, f"{path}: {token.message}")
        return Source(spec.url, token)

    def forget(self, key: Key) -> None:
        """The service is no longer to be scaled."""
        self._services.pop(key, None)

    async def look(self, key: Key) -> float | None:
        """Query Prometheus and decide. Seconds until the next query; None if the service is no longer scaled."""
        known = self._services.get(key)
        if known is None:
            return None
        source = known.source
        seen = source if isinstance(source, Note) else await self._figures(key, known, source)
        known = self._services.get(key)
        if known is None:
            return None
        if known.source == source:  # otherwise another Prometheus answered
            after = self._stepped(known.terms, source, known.state, seen)
            self._services[key] = after
            if after.decision != known.decision:
                _log.info("%s: %d replicas (%s), ScalingActive: %s", key, after.decision.replicas,
                          after.decision.reason, after.decision.note.reason)  # fmt: skip
                self._wake(key)
        return INTERVAL_S

    async def _figures(self, key: Key, known: _Scaled, source: Source) -> Measurements | Note:
        asked = queries(key.namespace, key.name, known.terms.scaling)
        try:
            found = measurements(await self._prometheus.ask(source, asked))
            if isinstance(found, Note) and found.reason == reasons.NO_DATA:
                answer = await self._prometheus.ask(source, labels_query())
                return without_series(answer.get(LABELS, ()), key.namespace, key.name)
            return found
        except PrometheusError as error:
            return error.note

    def _stepped(
        self, terms: Terms, source: Source | Note, state: ScalerState, seen: Measurements | Note
    ) -> _Scaled:
        after, decision = step(state, terms, seen, now_s=self._monotonic_s())
        return _Scaled(terms, source, after, seen, decision)


def _matters(before: Terms, after: Terms) -> bool:
    """Whether to decide again at once. A change of ready replicas waits for the next query: each step adds a
    recommendation to the history."""
    return replace(before, ready=0) != replace(after, ready=0)


# Pause after an answer without a change: a terminating router answers at once.
PAUSE_S: Final = 0.5
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 30.0


@dataclass(slots=True, eq=False)
class _Followed:
    """What is known of one service at zero."""

    token: str
    service: str
    """The service that a question to the routers names; empty where they have no other."""
    look: asyncio.Event = field(default_factory=asyncio.Event)
    """Event: the service's routers may have changed."""
    waiting: set[str] = field(default_factory=set)
    """Addresses of the routers at which requests wait for the first replica."""
    task: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        return bool(self.waiting)


class Activations:
    """Follows the services that stand at zero."""

    def __init__(
        self, observer: Observer, routers: Routers, *, on_news: Callable[[Key], None]
    ) -> None:
        """`on_news` is called when requests begin or cease to wait for a service."""
        self._observer = observer
        self._routers = routers
        self._on_news = on_news
        self._followed: dict[Key, _Followed] = {}

    def wanted(self, key: Key) -> bool:
        """Whether requests wait for a first replica of it."""
        followed = self._followed.get(key)
        return followed is not None and followed.wanted

    def follow(self, key: Key, *, token: str, service: str = "") -> None:
        """Start or refresh the watch on a service without a ready engine; its routers may have changed since the last pass."""
        known = self._followed.get(key)
        if known is not None and (known.token, known.service) == (token, service):
            known.look.set()
            return
        self.leave(key)
        followed = self._followed[key] = _Followed(token, service)
        self._begin(key, followed)

    def leave(self, key: Key) -> None:
        """An engine is ready, the service is deleted, or a request must not start it."""
        followed = self._followed.pop(key, None)
        if followed is not None and followed.task is not None:
            followed.task.cancel()

    def resume(self) -> None:
        """Continue after `pause`."""
        for key, followed in self._followed.items():
            if followed.task is None or followed.task.done():
                self._begin(key, followed)

    async def pause(self) -> None:
        """Stop asking, until `resume`."""
        tasks = [one.task for one in self._followed.values() if one.task is not None]
        for followed in self._followed.values():
            followed.task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, key: Key, followed: _Followed) -> None:
        followed.task = asyncio.create_task(self._follow(key, followed))
        followed.task.add_done_callback(_report)

    async def _follow(self, key: Key, followed: _Followed) -> None:
        """Keep one open request to each ready router."""
        asking: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                followed.look.clear()
                there = await self._addresses(key)
                for address in asking.keys() - there:
                    asking.pop(address).cancel()
                    self._record(key, followed, address, waits=False)
                for address in there - asking.keys():
                    asking[address] = asyncio.create_task(self._ask(key, followed, address))
                    asking[address].add_done_callback(_report)
                await followed.look.wait()
        finally:
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)

    # Runs concurrently with passes.

    async def _addresses(self, key: Key) -> set[str]:
        """Addresses of the ready routers."""
        wait_s = FIRST_RETRY_S
        while True:
            try:
                return set(addresses_of_ready(await self._observer.pods(key).of(ROUTER_COMPONENT)))
            except ClusterError as error:
                _log.info("%s: cannot list its routers: %s", key, error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LAST_RETRY_S)

    async def _ask(self, key: Key, followed: _Followed, address: str) -> None:
        """Poll one router for as long as it exists."""
        wait_s = FIRST_RETRY_S
        while True:
            known = address in followed.waiting
            waits = await self._routers.activation(
                address, token=followed.token, known=known, service=followed.service
            )
            if waits is None:
                self._record(key, followed, address, waits=False)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LAST_RETRY_S)
                continue
            wait_s = FIRST_RETRY_S
            self._record(key, followed, address, waits=waits)
            if waits is known:
                await asyncio.sleep(PAUSE_S)

    def _record(self, key: Key, followed: _Followed, address: str, *, waits: bool) -> None:
        before = followed.wanted
        (followed.waiting.add if waits else followed.waiting.discard)(address)
        if followed.wanted is not before:
            what = "a request waits for the first replica" if waits else "no request waits"
            _log.info("%s: %s", key, what)
            self._on_news(key)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.critical("asking the routers of a service at zero failed", exc_info=task.exception())


async def scale_external(client: KubeClient, state: PassState) -> list[Note]:
    """Set the number of engines that another owner made, through the subresource `/scale` of their owner."""
    target, decision, present, key = (
        state.scale_target, state.scaling.decision, state.present, state.key
    )  # fmt: skip
    if target is None or decision is None or present is None:
        return []
    # Without measurements nothing shrinks, whatever the bounds of the spec: the object is not the operator's.
    replicas = decision.replicas if decision.active else max(decision.replicas, present)
    if replicas == present:
        return []
    what = f"{target.kind} {target.name}"
    where = (target.api_version, target.kind, key.namespace, target.name)
    try:
        _log.info("%s: scale %s to %d", key, what, replicas)
        await client.set_scale(*where, replicas=replicas)
    except ApiError as error:
        if not is_lasting(error):
            raise
        message = f"spec.engine.external.scaleTargetRef: {what} cannot be scaled: {error.message}"
        return [Note(note_of(error).reason, message)]
    return []
