"""The writes that make the cluster match the manifests. At rest the plan is empty."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from evenkeel_contract.faults import show
from evenkeel_contract.names import GROUP
from evenkeel_contract.quantities import Quantity

from evenkeel_operator.core.objects import Object, Ref, annotations_of, is_controlled_by, ref_of

# Associative lists of Kubernetes (`x-kubernetes-list-map-keys`) in the generated objects.
LIST_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "port"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "ownerReferences": ("uid",),
    "readinessGates": ("conditionType",),
}
_QUANTITIES: Final = frozenset({"requests", "limits", "capacity"})
_SINGLE_QUANTITIES: Final = frozenset({"sizeLimit", "storage", "divisor"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs from the manifest."""

    path: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: {self.found} is not {self.wanted}"


def differences(wanted: Any, found: Any, path: str = "") -> Iterator[Difference]:
    """Every field of `wanted` that is missing or different in `found`."""
    if isinstance(wanted, Mapping):
        yield from _in_mapping(wanted, found, path)
    elif isinstance(wanted, list):
        yield from _in_list(wanted, found, path)
    elif wanted != found and not _same_quantity(wanted, found, path):
        yield Difference(path, _shown(wanted, path), _shown(found, path))


def _in_mapping(wanted: Mapping[str, Any], found: Any, path: str) -> Iterator[Difference]:
    if not isinstance(found, Mapping):
        yield Difference(path, "a mapping", show(found))
        return
    for key, value in wanted.items():
        below = f"{path}.{key}" if path else key
        if key in found:
            yield from differences(value, found[key], below)
        elif not _is_empty(value):
            yield Difference(below, _shown(value, below), "absent")


def _in_list(wanted: Sequence[Any], found: Any, path: str) -> Iterator[Difference]:
    if not isinstance(found, list):
        yield Difference(path, "a list", show(found))
        return
    key = _key_of(path, [*wanted, *found])
    if key is None:
        if len(wanted) != len(found):
            count = f"{len(wanted)} entries"
            yield Difference(path, count, f"a list of {len(found)}")
            return
        for index, (ours, theirs) in enumerate(zip(wanted, found, strict=True)):
            yield from differences(ours, theirs, f"{path}[{index}]")
        return
    by_key = {entry[key]: entry for entry in found}
    for entry in wanted:
        below = f"{path}[{entry[key]}]"
        if entry[key] in by_key:
            yield from differences(entry, by_key[entry[key]], below)
        else:
            yield Difference(below, "there", "absent")


def _key_of(path: str, entries: Sequence[Any]) -> str | None:
    name = path.rpartition(".")[2]
    for key in LIST_KEYS.get(name, ()):
        values = [entry.get(key) if isinstance(entry, Mapping) else None for entry in entries]
        if all(isinstance(value, str | int) for value in values):
            return key
    return None


def _is_empty(value: Any) -> bool:
    """Values that the API server omits."""
    return value is None or value in ({}, [], "")


def _same_quantity(wanted: Any, found: Any, path: str) -> bool:
    parts = path.split(".")
    in_resources = len(parts) > 1 and parts[-2] in _QUANTITIES
    # A name of a resource holds dots itself: requests.nvidia.com/gpu.
    in_resources = in_resources or any(part in _QUANTITIES for part in parts[-4:-1])
    if not in_resources and parts[-1] not in _SINGLE_QUANTITIES:
        return False
    try:
        return Quantity.from_plain(wanted).value == Quantity.from_plain(found).value
    except ValueError:
        return False


def _shown(value: Any, path: str) -> str:
    """Never the contents of a Secret."""
    return "…" if path.startswith(("data.", "data")) else show(value)


Manifest = dict[str, Any]

DIGEST_ANNOTATION: Final = f"{GROUP}/digest"
"""Digest of the manifest at the last apply. It distinguishes a removed field of the manifest from a field that
another manager added."""

_SHOWN: Final = 3  # differences that a reason names


@dataclass(frozen=True, slots=True)
class Change:
    """One object to apply."""

    manifest: Manifest
    new: bool
    """The object does not exist; the applier checks that no foreign object has its name."""
    foreign: tuple[Difference, ...] = ()
    """Foreign changes; empty if the manifest itself changed."""

    @property
    def ref(self) -> Ref:
        return ref_of(self.manifest)

    @property
    def why(self) -> str:
        """Text for log lines."""
        if self.new:
            return f"{self.ref}: absent"
        shown = "; ".join(str(found) for found in self.foreign[:_SHOWN])
        more = f" and {len(self.foreign) - _SHOWN} more" if len(self.foreign) > _SHOWN else ""
        return f"{self.ref}: {shown + more if shown else 'is wanted otherwise now'}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes, in this order: first all applies, then all deletions."""

    apply: tuple[Change, ...] = ()
    delete: tuple[Object, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the cluster matches the manifests."""
        return not self.apply and not self.delete


Residue = Mapping[Ref, frozenset[Difference]]
"""Digest → differences that remained after the apply. The API server or a webhook normalises these fields, so another
apply would change nothing."""


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
    """Whether the last apply of the object had this manifest, regardless of later foreign changes."""
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
    """Differences right after an apply: fields that the server normalises."""
    return frozenset(differences(applied, answer))
