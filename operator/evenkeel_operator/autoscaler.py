"""The built-in scaler: it queries Prometheus at intervals, so that every pass finds a decision in memory.

No pass waits for Prometheus. State is kept in memory only: a new operator starts from the replicas that exist, and
does not shrink before the window of `scaleDown` is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from evenkeel_contract.names import engine_name
from evenkeel_contract.spec import FairInferenceService
from evenkeel_contract.spec.scaling import Prometheus as PrometheusSpec

from evenkeel_operator.cluster.observe import Observed, Observer
from evenkeel_operator.cluster.prometheus import Prometheus, PrometheusError, Source
from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core import reasons
from evenkeel_operator.core.conditions import Note
from evenkeel_operator.core.defaults import Defaults
from evenkeel_operator.core.demand import parts_of
from evenkeel_operator.core.objects import Ref
from evenkeel_operator.core.queries import measurements, queries
from evenkeel_operator.core.recommendation import Measurements
from evenkeel_operator.core.scaler import Blind, Decision, State, Terms, started, step
from evenkeel_operator.core.spec_in_use import may_be_asked
from evenkeel_operator.core.workload import workload

_log = logging.getLogger(__name__)

INTERVAL_S: Final = 15.0
"""Interval between queries, equal to that of the HorizontalPodAutoscaler."""
NOT_YET: Final = Blind(Note(reasons.NO_DATA_YET, "This operator has not queried Prometheus yet."))


@dataclass(frozen=True, slots=True)
class _ScalingInputs:
    """What the last pass knew about a service."""

    terms: Terms
    source: Source | Blind
    """`Blind`: the reason why Prometheus cannot be queried."""


@dataclass(slots=True)
class _Scaled:
    inputs: _ScalingInputs
    state: State
    seen: Measurements | Blind
    decision: Decision


class Autoscaler:
    """Of all services."""

    def __init__(
        self,
        prometheus: Prometheus,
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
        self,
        key: Key,
        seen: Observed,
        service: FairInferenceService | None,
        *,
        activation: bool = False,
    ) -> Decision | None:
        """The current decision for a service; None if it is not to be scaled.

        `activation`: requests wait for its first replica. Raises `ClusterError`.
        """
        scaling = service.spec.autoscaling if service else None
        if service is None or scaling is None:
            self.forget(key)
            return None
        config, deployment = (
            seen.router_config,
            seen.children.get(Ref("Deployment", engine_name(key.name))),
        )
        terms = Terms(
            scaling=scaling,
            parts=parts_of(config.tenancy.tenants if config else ()),
            ready=workload(deployment, wanted=0).ready,
            activation=activation,
        )
        inputs = _ScalingInputs(terms, await self._source(key, scaling.prometheus))
        live = (
            scaling.min_replicas
            if deployment is None
            else int(deployment["spec"].get("replicas", 1))
        )
        return self._decided(key, inputs, live=live)

    def _decided(self, key: Key, inputs: _ScalingInputs, *, live: int) -> Decision:
        known = self._services.get(key)
        if known is None or known.inputs.source != inputs.source:
            # Measurements of another Prometheus do not count.
            state = started(live, now_s=self._monotonic_s()) if known is None else known.state
            seen = inputs.source if isinstance(inputs.source, Blind) else NOT_YET
            self._services[key] = self._stepped(state, inputs, seen)
            self._look_at(key)
        elif _matters(known.inputs.terms, inputs.terms):
            self._services[key] = self._stepped(known.state, inputs, known.seen)
        else:
            known.inputs = inputs
        return self._services[key].decision

    async def _source(self, key: Key, spec: PrometheusSpec) -> Source | Blind:
        """The address to query. A spec in use may be older than the operator's settings."""
        if not may_be_asked(spec.url, self._defaults):
            message = "spec.autoscaling.prometheus.url: the operator's --allow-prometheus does not allow this address."
            return Blind(Note(reasons.NOT_ALLOWED, message))
        ref = spec.token_secret_ref
        if ref is None:
            return Source(spec.url)
        token = await self._observer.entry(key.namespace, ref)
        if token is None:
            path = "spec.autoscaling.prometheus.tokenSecretRef"
            message = f"{path}: Secret {ref.name} has no entry {ref.key}."
            return Blind(Note(reasons.SECRET_MISSING, message))
        return Source(spec.url, token)

    def forget(self, key: Key) -> None:
        """The service is no longer to be scaled."""
        self._services.pop(key, None)

    async def look(self, key: Key) -> float | None:
        """Query Prometheus and decide. Seconds until the next query; None if the service is no longer scaled."""
        known = self._services.get(key)
        if known is None:
            return None
        source = known.inputs.source
        seen = source if isinstance(source, Blind) else await self._figures(key, known, source)
        known = self._services.get(key)
        if known is None:
            return None
        if known.inputs.source == source:  # otherwise another Prometheus answered
            after = self._stepped(known.state, known.inputs, seen)
            self._services[key] = after
            if after.decision != known.decision:
                _log.info("%s: %d replicas (%s), ScalingActive: %s", key, after.decision.replicas,
                          after.decision.reason, after.decision.note.reason)  # fmt: skip
                self._wake(key)
        return INTERVAL_S

    async def _figures(self, key: Key, known: _Scaled, source: Source) -> Measurements | Blind:
        asked = queries(key.namespace, key.name, known.inputs.terms.scaling)
        try:
            return measurements(await self._prometheus.ask(source, asked))
        except PrometheusError as error:
            return Blind(error.note)

    def _stepped(self, state: State, inputs: _ScalingInputs, seen: Measurements | Blind) -> _Scaled:
        after, decision = step(state, inputs.terms, seen, now_s=self._monotonic_s())
        return _Scaled(inputs, after, seen, decision)


def _matters(before: Terms, after: Terms) -> bool:
    """Whether to decide again at once. A change of ready replicas waits for the next query: each step adds a
    recommendation to the history."""
    return replace(before, ready=0) != replace(after, ready=0)
