"""Carry out a plan: the only place that writes objects of a service, its status, and Events, which `kubectl describe` shows.

A new object is looked up before it is applied. Server-side apply would take over any object of the same name, and
that object may belong to another owner.
"""

from __future__ import annotations

import logging
import re
import uuid
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from random import Random
from typing import Any, Final

from evenkeel_contract.names import API_VERSION, router_name
from evenkeel_contract.tenantshards import index_name, shard_names
from evenkeel_contract.values import Fault
from evenkeel_kube.client import ApiError, ClusterError, KubeClient, Refused

from evenkeel_operator.cluster.contests import NOTE, STATUS_S, Contests
from evenkeel_operator.cluster.observed import Observed
from evenkeel_operator.cluster.store import Key, Store
from evenkeel_operator.core import reasons
from evenkeel_operator.core.events import EventText
from evenkeel_operator.core.objects import (
    BULKY,
    DIGEST_ANNOTATION,
    Change,
    Difference,
    Manifest,
    Object,
    Ref,
    Settled,
    differences,
    is_controlled_by,
    make_plan,
    ref_of,
    seal,
    without_bulk,
)
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.sharding import Layout
from evenkeel_operator.core.status import cut, differs
from evenkeel_operator.manifests.context import MANAGER
from evenkeel_operator.manifests.model import NO_IMAGE_VOLUMES, NO_VOLUME_TYPE, has_image_volume

# Quotas and policies are changed by hand, sometimes within seconds and sometimes much later.
FIRST_RETRY_S: Final = 5.0
LAST_RETRY_S: Final = 300.0
_MAX_MESSAGE: Final = 1024  # characters of an event, the limit of the API server


@dataclass(frozen=True, slots=True)
class Refusal:
    """A write that the API server refused."""

    what: str
    """Digest of the write: another write of the same object may succeed."""
    why: Note
    attempts: int
    due_s: float
    """When to try again, on the monotonic clock."""


class Refusals:
    """Refused objects of all services, and when each may be sent again."""

    def __init__(self, *, rng: Random, monotonic_s: Callable[[], float]) -> None:
        self._rng = rng
        self._now_s = self.now_s = monotonic_s
        self._known: dict[Key, dict[Ref, Refusal]] = {}

    def pending(self, key: Key, ref: Ref, what: str) -> Refusal | None:
        """The last answer to the same write, if it is too early to try again."""
        found = self._known.get(key, {}).get(ref)
        waits = found is not None and found.what == what and self._now_s() < found.due_s
        return found if waits else None

    def refused(self, key: Key, ref: Ref, what: str, *, why: Note) -> Refusal:
        """The API server refused the write."""
        known = self._known.setdefault(key, {})
        before = known.get(ref)
        attempts = 1 if before is None or before.what != what else before.attempts + 1
        wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempts - 1, 10))
        # One policy may refuse writes of all services: spread their retries.
        due_s = self._now_s() + wait_s * self._rng.uniform(0.5, 1.0)
        known[ref] = Refusal(what, why, attempts, due_s)
        return known[ref]

    def wait_s(self, refusal: Refusal) -> float:
        """How long until the write is due again."""
        return max(0.0, refusal.due_s - self._now_s())

    def keep(self, key: Key, refs: Collection[Ref]) -> None:
        """Remove the refusals of all other objects: the plan does not write them any more."""
        kept = {ref: one for ref, one in self._known.pop(key, {}).items() if ref in refs}
        if kept:
            self._known[key] = kept


_log = logging.getLogger(__name__)

# As the API server words a right that is missing; quotas and policies refuse with status 403 too.
_NO_RIGHT: Final = re.compile(r'User ".*" cannot \w+ ')
_NO_WEBHOOK: Final = re.compile(r"failed calling webhook")


def is_lasting(error: ApiError) -> bool:
    """Whether the answer concerns this call alone and will last: a refusal, or status 500, as of a webhook that is down."""
    return isinstance(error, Refused) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR


def note_of(error: ClusterError) -> Note:
    """Why a call failed, for a condition."""
    message = error.message if isinstance(error, ApiError) else str(error)
    if _NO_RIGHT.search(message):
        return Note(reasons.RIGHT_MISSING, message)
    if _NO_WEBHOOK.search(message):
        return Note(reasons.WEBHOOK_FAILS, message)
    return Note(
        reasons.REFUSED if isinstance(error, Refused) else reasons.API_SERVER_ERROR, message
    )


DRY_RUN_KINDS = frozenset({"Deployment", "PersistentVolumeClaim", "Ingress", "HTTPRoute"})
"""Kinds with parts of the spec that only the API server can validate."""


@dataclass(slots=True)
class ApplyResult:
    """The result of carrying out a plan."""

    notes: list[Note] = field(default_factory=list)
    reverted: list[Change] = field(default_factory=list)
    """Foreign changes that were reverted."""
    again_s: float | None = None
    """Seconds until the first refused write is due again."""

    def refused(self, ref: Ref, why: Note, *, again_s: float) -> None:
        """The API server refused or failed this write, now or earlier."""
        self.notes.append(Note(why.reason, f"The API server refuses {ref}: {why.message}"))
        self.again_s = again_s if self.again_s is None else min(again_s, self.again_s)

    def contested(self, rest_s: float) -> None:
        """Another operator writes objects of the service too."""
        self.notes.append(NOTE)
        again_s = min(max(rest_s, 1.0), STATUS_S)
        self.again_s = again_s if self.again_s is None else min(again_s, self.again_s)


class Applier:
    """Writes; decides nothing."""

    def __init__(self, client: KubeClient, store: Store, refusals: Refusals) -> None:
        self._client = client
        self._store = store
        self._refusals = refusals
        self._residue: dict[Key, dict[Ref, frozenset[Difference]]] = {}
        self._settled: dict[Key, Settled] = {}
        self._contests = Contests(refusals.now_s)
        self.wake: Callable[[Key], None] = lambda key: None
        """What is called for resources that an event of an object concerns that was written meanwhile."""

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._residue.pop(key, None)
        self._settled.pop(key, None)
        self._refusals.keep(key, ())
        self._contests.forget(key)

    async def carry_out(
        self, seen: Observed, manifests: Sequence[Manifest], layout: Layout
    ) -> ApplyResult:
        """Apply what differs, then delete the rest. A refusal is noted, and the other writes continue. Raises
        `ClusterError` if a later attempt may succeed.

        While a Secret with tenants is refused, the index stays as it is and no such Secret is deleted: routers keep what
        they have."""
        key, outcome = seen.key, ApplyResult()
        tenants = {Ref("Secret", name) for name in (router_name(key.base), *shard_names(key.base))}
        index, held = Ref("Secret", index_name(key.base)), False
        # Fields that the server normalises are no difference.
        residue = self._residue.get(key, {})
        before = self._settled.get(key)
        plan = make_plan(
            manifests, seen.children, owner_uid=seen.uid, residue=residue, before=before
        )
        self._settled[key] = plan.settled
        # A write that is no longer pending starts again with the shortest wait.
        self._refusals.keep(key, {change.ref for change in plan.apply})
        lost = {one.ref for one in plan.apply if self._contests.is_lost(key, one)}
        skipped = lost if lost and not self._contests.may_write(key) else ()
        for change in plan.apply:
            if (held and change.ref == index) or change.ref in skipped:
                continue
            if refusal := await self._attempt(seen, change, layout, outcome):
                held |= change.ref in tenants
                outcome.refused(change.ref, refusal.why, again_s=self._refusals.wait_s(refusal))
        for item in plan.delete:
            if not held or ref_of(item) not in tenants:
                await self._delete(key, item, outcome)
        rest_s = self._contests.rest_s(key)
        if rest_s is not None:
            outcome.contested(rest_s)
        return outcome

    async def _attempt(
        self, seen: Observed, change: Change, layout: Layout, outcome: ApplyResult
    ) -> Refusal | None:
        """Apply one object, unless the same write was refused a short time ago."""
        key = seen.key
        digest = change.manifest["metadata"]["annotations"][DIGEST_ANNOTATION]
        what = f"{'make' if change.new else 'change'} {digest}"
        refusal = self._refusals.pending(key, change.ref, what)
        if refusal is not None:
            return refusal
        try:
            _log.info("%s: apply %s", key, change.why)
            await self._apply(key, change, outcome, owner_uid=seen.uid, layout=layout)
        except ApiError as error:
            if not is_lasting(error):
                raise
            return self._refusals.refused(key, change.ref, what, why=note_of(error))
        return None

    async def _delete(self, key: Key, item: Object, outcome: ApplyResult) -> None:
        _log.info("%s: delete %s", key, ref_of(item))
        try:
            await self._client.delete(item)
        except ApiError as error:
            if not is_lasting(error):
                raise
            outcome.refused(ref_of(item), note_of(error), again_s=LAST_RETRY_S)
        else:
            self._store.children(key).drop(ref_of(item))

    async def dry_run(self, manifests: Iterable[Manifest], *, namespace: str) -> tuple[Fault, ...]:
        """Refusals of the API server in a dry run of a new spec. Raises `ClusterError`."""
        faults = []
        for manifest in manifests:
            if manifest["kind"] not in DRY_RUN_KINDS:
                continue
            try:
                await self._client.apply(seal(manifest), dry_run=True)
            except Refused as error:
                _log.info("dry run of %s in %s refused: %s", ref_of(manifest), namespace, error)
                faults.append(_fault_of(manifest, error.message))
        return tuple(faults)

    async def write_status(self, key: Key, raw: Object, status: dict[str, Any]) -> bool:
        """Write the status of the object `raw` if it differs; returns whether it did. Raises `ClusterError`."""
        if not differs(status, raw) or not self._contests.may_report(key):
            return False
        metadata = {"name": key.name, "namespace": key.namespace}
        head = {"apiVersion": API_VERSION, "kind": key.kind, "metadata": metadata}
        answer = await self._client.apply_status({**head, "status": status})
        self._store.named(key.kind, key.namespace).put(answer)
        return True

    async def emit(self, about: Object, news: EventText, *, now: datetime) -> None:
        """Write one event. A failure is only logged: nothing depends on it."""
        metadata = about["metadata"]
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": "Warning" if news.bad else "Normal",
            "reason": news.reason,
            "message": cut(news.message, _MAX_MESSAGE),
            "action": "Reconcile",
            "eventTime": stamp,
            "reportingComponent": MANAGER,
            "reportingInstance": MANAGER,
        }
        try:
            await self._client.create(event)
        except ClusterError as error:
            _log.warning("cannot write event %s of %s: %s", news.reason, metadata["name"], error)

    async def rewrite(self, key: Key, item: Object, data: Mapping[str, bytes]) -> None:
        """Replace the entries of a Secret of a service, before the pass that builds it anew. Raises `ClusterError`."""
        metadata = item["metadata"]
        kept = {
            name: metadata[name]
            for name in ("name", "namespace", "labels", "ownerReferences", "annotations")
            if name in metadata
        }
        encoded = {name: b64encode(entry).decode() for name, entry in data.items()}
        head = {"apiVersion": "v1", "kind": "Secret", "metadata": kept, "type": item.get("type")}
        _log.info("%s: revoke in %s", key, ref_of(item))
        with self._store.writing(key, ref_of(item), self.wake):
            answer = await self._client.apply({**head, "data": encoded})
            self._store.children(key).put(answer)

    async def _apply(
        self, key: Key, change: Change, outcome: ApplyResult, *, owner_uid: str, layout: Layout
    ) -> None:
        ref, manifest = change.ref, change.manifest
        if change.new and await self._is_taken(key, ref, owner_uid):
            message = f"{ref} exists and belongs to someone else. Rename the service, or remove that object."
            outcome.notes.append(Note(reasons.NAME_TAKEN, message))
            return
        with self._store.writing(key, ref, self.wake):
            answer = without_bulk(await self._client.apply(_whole(manifest, layout)))
            self._contests.wrote(key, manifest)
            self._store.children(key).put(answer)
        residue = frozenset(differences(manifest, answer))
        self._residue.setdefault(key, {})[ref] = residue
        if not residue.issuperset(change.foreign):  # otherwise the server normalised it before
            outcome.reverted.append(change)

    async def _is_taken(self, key: Key, ref: Ref, owner_uid: str) -> bool:
        found = await self._client.get(ref.kind, key.namespace, ref.name)
        return found is not None and not is_controlled_by(found, owner_uid)


def _whole(manifest: Manifest, layout: Layout) -> Manifest:
    """The manifest with the contents of entries that it names by digest."""
    data = manifest.get("data") if manifest["kind"] == "Secret" else None
    if not data or not BULKY & data.keys():
        return manifest
    whole = {
        name: b64encode(layout.contents[entry]()).decode() if name in BULKY else entry
        for name, entry in data.items()
    }
    return {**manifest, "data": whole}


def _fault_of(manifest: Manifest, refusal: str) -> Fault:
    """A refusal of the API server, by the part of the spec that led to it."""
    if NO_VOLUME_TYPE in refusal and has_image_volume(manifest):
        return Fault("spec.model.source", NO_IMAGE_VOLUMES)
    return Fault(_field_of(manifest), f"is refused by the cluster: {refusal}")


def _field_of(manifest: Manifest) -> str:
    """The part of the spec from which most of an object is built."""
    kind, name = manifest["kind"], str(manifest["metadata"]["name"])
    if kind in ("Ingress", "HTTPRoute"):
        return "spec.exposure"
    component = name.rpartition("-")[2]
    if kind == "PersistentVolumeClaim":
        return "spec.model.cache" if component == "engine" else "spec.router.state.file"
    return f"spec.{component}"
