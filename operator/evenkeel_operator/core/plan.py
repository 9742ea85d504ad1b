"""What has to be written so that the cluster is as wanted: the difference of two values.

Place in the pass: manifests + live objects → **plan** → apply. An empty plan is the steady state: it writes
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from evenkeel_contract.names import GROUP

from evenkeel_operator.core.compare import Difference, differences
from evenkeel_operator.core.objects import Object, Ref, annotations_of, is_controlled_by, ref_of

Manifest = dict[str, Any]

DIGEST_ANNOTATION: Final = f"{GROUP}/digest"
"""Of what was wanted when the object was applied. It tells a field that is wanted no more, which a comparison
with what is wanted cannot see, from one that somebody else added."""

_SHOWN: Final = 3  # differences that a reason names


@dataclass(frozen=True, slots=True)
class Change:
    """One object to apply."""

    manifest: Manifest
    new: bool
    """It was not there; whoever applies it makes sure that nobody else's is in its place."""
    foreign: tuple[Difference, ...] = ()
    """What somebody else changed; empty where we want something else than before."""

    @property
    def ref(self) -> Ref:
        return ref_of(self.manifest)

    @property
    def why(self) -> str:
        """For people."""
        if self.new:
            return f"{self.ref}: absent"
        shown = "; ".join(str(found) for found in self.foreign[:_SHOWN])
        more = f" and {len(self.foreign) - _SHOWN} more" if len(self.foreign) > _SHOWN else ""
        return f"{self.ref}: {shown + more if shown else 'is wanted otherwise now'}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, in this order: first all that is to be there, then what is to be there no more."""

    apply: tuple[Change, ...] = ()
    delete: tuple[Object, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether everything is as wanted."""
        return not self.apply and not self.delete


Residue = Mapping[Ref, frozenset[Difference]]
"""Differences that were left after an object had been applied, since its digest was this: the server, or a
webhook, spells the field in its own way. To apply again would change nothing and never end."""


def make_plan(
    wanted: Iterable[Manifest],
    live: Mapping[Ref, Object],
    *,
    owner_uid: str,
    residue: Residue | None = None,
) -> Plan:
    """The difference. Objects of `live` that the owner does not control are left alone."""
    known = residue or {}
    changes, kept = [], set()
    for manifest in wanted:
        ref = ref_of(manifest)
        kept.add(ref)
        change = _change(seal(manifest), live.get(ref), known.get(ref, frozenset()))
        if change is not None:
            changes.append(change)
    superfluous = (
        item
        for ref, item in sorted(live.items())
        if ref not in kept
        and is_controlled_by(item, owner_uid)
        and "deletionTimestamp" not in item["metadata"]
    )
    return Plan(tuple(changes), tuple(superfluous))


def was_meant(manifest: Manifest, live: Object) -> bool:
    """Whether the object was last applied as exactly this, whatever others made of it since."""
    sealed = seal(manifest)["metadata"]["annotations"][DIGEST_ANNOTATION]
    return bool(annotations_of(live).get(DIGEST_ANNOTATION) == sealed)


def seal(manifest: Manifest) -> Manifest:
    """The manifest with its digest."""
    digest = hashlib.sha256(msgspec.json.encode(manifest, order="deterministic")).hexdigest()[:16]
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), DIGEST_ANNOTATION: digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def _change(sealed: Manifest, found: Object | None, known: frozenset[Difference]) -> Change | None:
    if found is None:
        return Change(sealed, new=True)
    open_ = tuple(item for item in differences(sealed, found) if item not in known)
    if not open_:
        return None
    digest = sealed["metadata"]["annotations"][DIGEST_ANNOTATION]
    meant = annotations_of(found).get(DIGEST_ANNOTATION) != digest
    return Change(sealed, new=False, foreign=() if meant else open_)


def left_over(applied: Manifest, answer: Object) -> frozenset[Difference]:
    """What still differs right after applying: the server's own spelling."""
    return frozenset(differences(applied, answer))
