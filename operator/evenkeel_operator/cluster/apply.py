"""Carrying out a plan: the only place that writes objects of a service.

Place in the pass: plan → **apply** → status.

The surprising thing: an object that is to be made is looked for first. Server-side apply would take over whatever
bears its name, and that may be somebody else's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from evenkeel_contract.faults import Fault
from evenkeel_kube.client import KubeClient
from evenkeel_kube.errors import Refused

from evenkeel_operator.cluster.refusals import Refusals
from evenkeel_operator.cluster.store import Key, Store
from evenkeel_operator.core import reasons
from evenkeel_operator.core.compare import Difference
from evenkeel_operator.core.conditions import Note
from evenkeel_operator.core.objects import Ref, is_controlled_by, ref_of
from evenkeel_operator.core.plan import DIGEST_ANNOTATION, Change, Manifest, Plan, left_over, seal

_log = logging.getLogger(__name__)

REHEARSED = frozenset({"Deployment", "PersistentVolumeClaim", "Ingress", "HTTPRoute"})
"""What holds parts of the spec that only the API server can judge."""


@dataclass(slots=True)
class Outcome:
    """What became of a plan."""

    notes: list[Note] = field(default_factory=list)
    reverted: list[Change] = field(default_factory=list)
    """Foreign changes that were put back."""
    again_s: float | None = None
    """When something that was refused is due again, seconds from now."""

    def refused(self, ref: Ref, message: str, *, again_s: float) -> None:
        """The API server said no, now or a while ago."""
        self.notes.append(Note(reasons.REFUSED, f"{ref} is refused: {message}"))
        self.again_s = again_s if self.again_s is None else min(again_s, self.again_s)


class Applier:
    """Writes; decides nothing."""

    def __init__(self, client: KubeClient, store: Store, refusals: Refusals) -> None:
        self._client = client
        self._store = store
        self._refusals = refusals
        self._residue: dict[Key, dict[Ref, frozenset[Difference]]] = {}

    def residue(self, key: Key) -> dict[Ref, frozenset[Difference]]:
        """What the server spells in its own way, for `make_plan`."""
        return self._residue.get(key, {})

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._residue.pop(key, None)
        self._refusals.keep(key, ())

    async def carry_out(self, key: Key, plan: Plan, *, owner_uid: str) -> Outcome:
        """Apply, then delete. What the API server refuses is noted, and the rest goes on; raises `ClusterError`
        where a later attempt may do better."""
        outcome = Outcome()
        # What was done, by us or by anybody, may be refused anew one day: that is another story.
        self._refusals.keep(key, {change.ref for change in plan.apply})
        for change in plan.apply:
            digest = change.manifest["metadata"]["annotations"][DIGEST_ANNOTATION]
            what = f"{'make' if change.new else 'change'} {digest}"
            refusal = self._refusals.pending(key, change.ref, what)
            if refusal is None:
                try:
                    _log.info("%s: apply %s", key, change.why)
                    await self._apply(key, change, outcome, owner_uid=owner_uid)
                    continue
                except Refused as error:
                    refusal = self._refusals.refused(key, change.ref, what, message=error.message)
            outcome.refused(change.ref, refusal.message, again_s=self._refusals.wait_s(refusal))
        for item in plan.delete:
            _log.info("%s: delete %s", key, ref_of(item))
            await self._client.delete(item)
            self._store.children(key).drop(ref_of(item))
        return outcome

    async def rehearse(self, manifests: Iterable[Manifest], *, namespace: str) -> tuple[Fault, ...]:
        """What the API server would refuse of a new spec: nothing is changed. Raises `ClusterError`."""
        faults = []
        for manifest in manifests:
            if manifest["kind"] not in REHEARSED:
                continue
            try:
                await self._client.apply(seal(manifest), dry_run=True)
            except Refused as error:
                _log.info("%s in %s would be refused: %s", ref_of(manifest), namespace, error)
                faults.append(
                    Fault(_field_of(manifest), f"is refused by the cluster: {error.message}")
                )
        return tuple(faults)

    async def _apply(self, key: Key, change: Change, outcome: Outcome, *, owner_uid: str) -> None:
        ref, manifest = change.ref, change.manifest
        if change.new and await self._is_taken(key, ref, owner_uid):
            message = f"{ref} is there and not ours; rename the service, or remove it"
            outcome.notes.append(Note(reasons.NAME_TAKEN, message))
            return
        answer = await self._client.apply(manifest)
        self._store.children(key).put(answer)
        residue = left_over(manifest, answer)
        self._residue.setdefault(key, {})[ref] = residue
        if not residue.issuperset(
            change.foreign
        ):  # else it was the server's own spelling all along
            outcome.reverted.append(change)

    async def _is_taken(self, key: Key, ref: Ref, owner_uid: str) -> bool:
        found = await self._client.get(ref.kind, key.namespace, ref.name)
        return found is not None and not is_controlled_by(found, owner_uid)


def _field_of(manifest: Manifest) -> str:
    """The part of the spec that an object is mostly made of."""
    kind, name = manifest["kind"], str(manifest["metadata"]["name"])
    if kind in ("Ingress", "HTTPRoute"):
        return "spec.exposure"
    component = name.rpartition("-")[2]
    if kind == "PersistentVolumeClaim":
        return "spec.model.cache" if component == "engine" else "spec.router.state.file"
    return f"spec.{component}"
