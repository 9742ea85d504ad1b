"""The step of a pass for a model that a Job downloads onto a volume (`core/fill.py`).

Until the volume has the files, engines of the spec before serve. Without any, none is started.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from evenkeel_contract.names import MODEL_COMPONENT, accepted_name, engine_name

from evenkeel_operator.cluster.downloads import Downloads
from evenkeel_operator.core import reasons
from evenkeel_operator.core.fill import Fill, cached, fill_of, held_spec
from evenkeel_operator.core.neighbours import with_pods
from evenkeel_operator.core.records import Accepted, last_good, read_accepted
from evenkeel_operator.core.scaling import decide
from evenkeel_operator.pass_state import PassState

AGAIN_S: Final = 10.0
"""How often pods are asked how far they are."""


class ModelCaches:
    """Volumes with models of all services."""

    def __init__(self, downloads: Downloads) -> None:
        self._downloads = downloads

    async def attend(self, state: PassState) -> PassState:
        """The pass with the spec to use until the volume has the files. Raises `ClusterError`."""
        service, seen = state.spec.running, state.seen
        if service is None or not service.spec.model.filled_by_job:
            return state
        jobs = [item for ref, item in seen.children.items() if ref.kind == "Job"]
        fill = fill_of(service, engines=seen.engines, jobs=jobs)
        if fill.is_filled:
            return state.with_fill(fill, cached(fill))
        pods = await seen.pods.of(MODEL_COMPONENT)
        note = cached(fill, pods, await self._downloads.ask(pods))
        if note.reason != reasons.DOWNLOADING:
            state = state.with_notes((note,))
        return _hold(state, fill).with_model(note).due(AGAIN_S)


def _hold(state: PassState, fill: Fill) -> PassState:
    """The pass with the model and the engines that serve until the volume has the files of the newest spec."""
    seen, newest = state.seen, state.spec.accepted
    if seen.engines is None or newest is None:
        return state.with_fill(fill)
    before = read_accepted(seen.child("ConfigMap", accepted_name))
    if before is None or before.spec == newest.spec:
        # The spec of the engines is unknown. New ones wait for their files, and the old ones serve meanwhile.
        return state.with_fill(replace(fill, is_filled=True))
    mixed = Accepted(held_spec(newest.spec, before.spec), newest.pins)
    found = last_good(state.raw, mixed)
    if found.running is None:  # what changed beside the model needs the new engines
        found = last_good(state.raw, before)
    found = with_pods(found, seen.pools, seen.child("Service", engine_name))
    found = replace(found, faults=state.spec.faults)
    held = replace(state, spec=found, scaling=decide(found.spec))
    return held.with_fill(replace(fill, holds_spec=True))
