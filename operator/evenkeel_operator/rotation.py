"""Move engines into and out of rotation: the part of a pass that writes to pods (design §6).

It opens the readiness gate of a new replica once a router sends requests to it. It reduces the Deployment's replicas
once routers have stopped sending to the scale-down candidates. Routers are asked only while a replica comes or goes.

Nothing is kept in memory. Marks and conditions are in the pods, so an operator that stops between two steps is
followed by one that continues.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final

from evenkeel_contract.names import ENGINE_COMPONENT, ROUTER_COMPONENT
from evenkeel_kube.client import KubeClient, Refused

from evenkeel_operator.cluster.observed import Observed
from evenkeel_operator.cluster.routers import Routers
from evenkeel_operator.cluster.store import Key, Store
from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import Manifest, Object, ref_of, was_meant
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.room import is_idle, lacks_room, unable_to_serve, with_room
from evenkeel_operator.core.rotation import (
    Answers,
    ScaleDownStep,
    condition,
    look_again_s,
    marked,
    next_step,
    openings,
    overdue,
    without_gate,
)
from evenkeel_operator.core.workload import (
    EnginePod,
    engines_of,
    has_gate,
    newest_template,
    workload,
)
from evenkeel_operator.pass_state import PassState

_log = logging.getLogger(__name__)

# Routers watch pods, so they see a mark within a few milliseconds.
LETTING_GO_S: Final = 0.3
# While new engines have no room, no event says that an old one waits after a crash.
ROOM_S: Final = 15.0


class Rotation:
    """Rotation of the replicas of all services."""

    def __init__(
        self,
        client: KubeClient,
        store: Store,
        *,
        routers: Routers,
        clock: Callable[[], datetime],
        replica_sets: Callable[[Key, str], Awaitable[Sequence[Object]]],
    ) -> None:
        """`replica_sets`: lists those of a component."""
        self._client = client
        self._store = store
        self._routers = routers
        self._clock = clock
        self._replica_sets = replica_sets

    async def attend(self, state: PassState) -> PassState:
        """Open gates, mark candidates; raises `ClusterError`."""
        live = state.seen.engines
        if state.desired is None or live is None:
            return state
        built = next((one for one in state.desired.manifests if ref_of(one) == ref_of(live)), None)
        if built is None:  # another owner made the engines
            return state
        manifest = _gated_as_it_was(built, live)
        state = state.with_manifest(manifest)
        replicas = manifest["spec"]["replicas"]
        larger = _scaled(manifest, live["spec"].get("replicas", 1))
        # A foreign change of the number is reverted at once, without choosing candidates.
        shrinking = larger["spec"]["replicas"] > replicas and was_meant(larger, live)
        noted = self._store.pods_to_check(state.key)
        if not shrinking and not noted and workload(live, wanted=replicas).settled:
            return state

        pods = await state.seen.pods.of(ENGINE_COMPONENT)
        if lacks_room(live, pods) and any(map(is_idle, pods)):
            missing = await self._unable_to_serve(state.key, live, pods)
            manifest, larger = with_room(manifest, missing), with_room(larger, missing)
            state = state.with_manifest(manifest).due(ROOM_S)
        engines = engines_of(pods)
        to_look_at = {engine.name for engine in engines if engine.needs_a_look}
        self._store.note_checked_pods(state.key, noted, still=to_look_at)
        ask = shrinking or any(engine.waits_since for engine in engines)
        answers = await self.ask(state.seen) if ask else ()
        notes = await self._open(state.key, engines, answers)
        leave = next_step(
            engines,
            wanted=replicas,
            shrinking=shrinking,
            answers=answers,
            cordoned=self._store.cordoned,
            now=self._clock(),
        )
        notes += await self._mark(state.key, leave)
        now = self._clock()
        state = state.with_notes(notes).with_blocked(overdue(engines, now))
        if not leave.wait or notes:  # marks that the API server refuses do not prevent a scale-down
            return state.due(look_again_s(engines, now))
        return state.with_manifest(larger).due(LETTING_GO_S)

    async def _unable_to_serve(self, key: Key, live: Object, pods: Sequence[Object]) -> int:
        """The number of old engines that cannot serve."""
        found = await self._replica_sets(key, ENGINE_COMPONENT)
        return unable_to_serve(pods, newest=newest_template(found, live))

    async def ask(self, seen: Observed) -> Answers:
        """The replicas by every ready router of a service; raises `ClusterError`."""
        pods = await seen.pods.of(ROUTER_COMPONENT)
        service = seen.named_at_routers
        return await self._routers.ask(pods, token=seen.routers_token, service=service)

    async def _open(self, key: Key, engines: Sequence[EnginePod], answers: Answers) -> list[Note]:
        notes: list[Note] = []
        now = self._clock()
        for engine, why in openings(engines, answers, now):
            _log.info("%s: engine %s enters rotation: %s", key, engine.name, why.message)
            head = {**_head(key, engine), "status": {"conditions": [condition(why, now)]}}
            notes += await self._write(self._client.apply_status, key, head)
        return notes

    async def _mark(self, key: Key, leave: ScaleDownStep) -> list[Note]:
        notes: list[Note] = []
        for engine in leave.unmark:
            _log.info("%s: engine %s is no longer a scale-down candidate", key, engine.name)
            notes += await self._write(self._client.apply, key, _head(key, engine))
        for engine in leave.mark:
            _log.info("%s: engine %s is a scale-down candidate", key, engine.name)
            annotations = marked(engine, self._clock())
            notes += await self._write(self._client.apply, key, _head(key, engine, annotations))
        return notes

    async def _write(
        self, write: Callable[[Object], Any], key: Key, manifest: Manifest
    ) -> list[Note]:
        """A refusal becomes a note; the service continues."""
        try:
            self._store.see("MODIFIED", "Pod", await write(manifest))
        except Refused as error:
            _log.warning("%s: the API server refuses %s: %s", key, ref_of(manifest), error.message)
            return [
                Note(reasons.REFUSED, f"The API server refuses {ref_of(manifest)}: {error.message}")
            ]
        return []


def _gated_as_it_was(manifest: Manifest, live: Object) -> Manifest:
    """The manifest without the gate if only the gate would change: that alone must not restart every engine."""
    if has_gate(live["spec"]["template"]):
        return manifest
    bare = without_gate(manifest)
    counts = (live["spec"].get("replicas", 1), bare["spec"]["replicas"])
    return bare if any(was_meant(_scaled(bare, count), live) for count in counts) else manifest


def _scaled(manifest: Manifest, replicas: int) -> Manifest:
    return {**manifest, "spec": {**manifest["spec"], "replicas": replicas}}


def _head(key: Key, engine: EnginePod, annotations: dict[str, str] | None = None) -> Manifest:
    """The manifest of a pod to apply. The uid prevents a write to a newer pod of the same name. Fields of an earlier mark
    that this one lacks are removed; foreign annotations stay."""
    metadata: Manifest = {"name": engine.name, "namespace": key.namespace, "uid": engine.uid}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
