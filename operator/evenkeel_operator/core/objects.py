"""Objects of the cluster as plain data, and the plan of writes that makes them match the manifests.

At rest the plan is empty.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from evenkeel_contract.names import API_VERSION, GROUP, ROUTER_CONFIG_KEY
from evenkeel_contract.tenantshards import INDEX_ENTRY, SHARD_ENTRY
from evenkeel_contract.values import Quantity, show

Object = Mapping[str, Any]
"""An object as the API server returned it. Never modified."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One object within a namespace."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Kind:
    """Where objects of a kind are found."""

    api: str
    """Group and version, as in `apiVersion`."""
    plural: str

    @property
    def group(self) -> str:
        """Group of the API; empty for the core group."""
        return self.api.rpartition("/")[0]


# Every kind of object that the operator creates. RBAC, watches and clean-up use it.
KINDS: Final[Mapping[str, Kind]] = {
    "ConfigMap": Kind("v1", "configmaps"),
    "Secret": Kind("v1", "secrets"),
    "Service": Kind("v1", "services"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims"),
    "Deployment": Kind("apps/v1", "deployments"),
    "Job": Kind("batch/v1", "jobs"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings"),
    "NetworkPolicy": Kind("networking.k8s.io/v1", "networkpolicies"),
    "Ingress": Kind("networking.k8s.io/v1", "ingresses"),
    "HTTPRoute": Kind("gateway.networking.k8s.io/v1", "httproutes"),
    "PodMonitor": Kind("monitoring.coreos.com/v1", "podmonitors"),
    "PrometheusRule": Kind("monitoring.coreos.com/v1", "prometheusrules"),
}
ALL_KINDS: Final[Mapping[str, Kind]] = {
    **KINDS,
    "FairInferenceService": Kind(API_VERSION, "fairinferenceservices"),
    "InferenceTenant": Kind(API_VERSION, "inferencetenants"),
    "FairInferenceGateway": Kind(API_VERSION, "fairinferencegateways"),
    "Pod": Kind("v1", "pods"),
    "EndpointSlice": Kind("discovery.k8s.io/v1", "endpointslices"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "Event": Kind("v1", "events"),
    "HorizontalPodAutoscaler": Kind("autoscaling/v2", "horizontalpodautoscalers"),
    "InferencePool": Kind("inference.networking.k8s.io/v1", "inferencepools"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
}
"""Every kind that the operator reads or writes one by one."""
# Every cluster has Jobs, but roles that an administrator made for an older operator do not allow them.
_OPTIONAL_GROUPS: Final = ("batch", "gateway.networking.k8s.io", "monitoring.coreos.com")
OPTIONAL_KINDS: Final = frozenset(
    kind for kind, where in KINDS.items() if where.group in _OPTIONAL_GROUPS
)
"""Kinds that a cluster may lack. Listed one by one, since a cluster may have only part of a group or an old version."""


def ref_of(item: Object) -> Ref:
    """Kind and name."""
    return Ref(str(item["kind"]), str(item["metadata"]["name"]))


def is_controlled_by(item: Object, uid: str) -> bool:
    """Whether the owner with this uid made the object."""
    owners = item["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def labels_of(item: Object) -> Mapping[str, str]:
    """The object's labels, perhaps none."""
    return item["metadata"].get("labels") or {}


def annotations_of(item: Object) -> Mapping[str, str]:
    """The object's annotations, perhaps none."""
    return item["metadata"].get("annotations") or {}


def conditions_of(item: Object) -> Mapping[str, Mapping[str, Any]]:
    """The conditions of the object's status by type, perhaps none."""
    return {found["type"]: found for found in (item.get("status") or {}).get("conditions") or ()}


def without_status(item: Object) -> dict[str, Any]:
    """The parts of a resource that people set."""
    return {key: value for key, value in item.items() if key != "status"}


def entries_of(secret: Object | None) -> dict[str, bytes]:
    """The entries of a Secret, without those that are no base64."""
    found = {}
    for name, encoded in ((secret or {}).get("data") or {}).items():
        with suppress(ValueError):
            found[str(name)] = b64decode(str(encoded), validate=True)
    return found


def intent_of(item: Object) -> tuple[Any, ...]:
    """The parts of a resource that people set; the operator writes the rest."""
    metadata = item["metadata"]
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("labels"),
        metadata.get("annotations"),
        metadata.get("deletionTimestamp"),
    )


def tenants_place(service: Object) -> str:
    """The namespace that the newest spec names, perhaps not a name."""
    tenancy = (service.get("spec") or {}).get("tenancy") or {}
    return str(tenancy.get("namespace") or "")


def chosen_tenants(service: Object) -> Any:
    """The tenants that a service takes."""
    tenancy = (service.get("spec") or {}).get("tenancy") or {}
    return tenancy.get("selector"), tenancy.get("namespace")


def owner_of(item: Object, kind: str) -> str | None:
    """The name of the owner of a kind."""
    owners = item["metadata"].get("ownerReferences") or ()
    names = (owner["name"] for owner in owners if owner.get("kind") == kind)
    return next(names, None)


BULKY: Final = frozenset({ROUTER_CONFIG_KEY, INDEX_ENTRY, SHARD_ENTRY})
"""Entries of generated Secrets that hold tenants. The operator keeps their digests: one service may have megabytes."""
DIGEST_PREFIX: Final = "sha256:"


def digest_of(encoded: str) -> str:
    """What stands for an entry with tenants; `encoded`: the entry in Base64, which has no colon."""
    return f"{DIGEST_PREFIX}{hashlib.sha256(encoded.encode()).hexdigest()}"


def without_bulk(item: Object) -> Object:
    """The object, with digests in place of the entries of a Secret that hold tenants."""
    data = (item.get("data") or {}) if item.get("kind") == "Secret" else {}
    bulky = {name for name in BULKY & data.keys() if not data[name].startswith(DIGEST_PREFIX)}
    if not bulky:
        return item
    short = {name: digest_of(str(data[name])) for name in bulky}
    return {**item, "data": {**data, **short}}


# Associative lists of Kubernetes (`x-kubernetes-list-map-keys`): where several keys could, the first that all entries have.
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
    "resourceClaims": ("name",),
    "claims": ("name",),
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
    key = list_key(path.rpartition(".")[2], [*wanted, *found])
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


def list_key(name: str, entries: Sequence[Any]) -> str | None:
    """The field that identifies an entry of the list `name`; None if only their order does."""
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
    """Text of a value for a message. Contents of a Secret are hidden."""
    return "…" if path.startswith("data") else show(value)


Manifest = dict[str, Any]
"""One object of Kubernetes, as it is sent to the API server."""

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


Settled = Mapping[Ref, tuple[str, str]]
"""Objects without a difference → digest of the manifest, and version of the object."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes, in this order: first all applies, then all deletions."""

    apply: tuple[Change, ...] = ()
    delete: tuple[Object, ...] = ()
    settled: Settled = field(default_factory=dict, compare=False)
    """What is as it should be: a later plan compares it again only if it changed."""


Residue = Mapping[Ref, frozenset[Difference]]
"""Differences that remained after the apply. The API server or a webhook normalises these fields, so another
apply would change nothing."""


def make_plan(
    wanted: Iterable[Manifest],
    live: Mapping[Ref, Object],
    *,
    owner_uid: str,
    residue: Residue | None = None,
    before: Settled | None = None,
) -> Plan:
    """The difference. Objects of `live` that the owner does not control are left alone. `before`: what the last plan found settled."""
    known, same = residue or {}, before or {}
    changes, kept, settled = [], set(), dict[Ref, tuple[str, str]]()
    for manifest in wanted:
        ref, sealed = ref_of(manifest), seal(manifest)
        kept.add(ref)
        found = live.get(ref)
        version = str((found or {"metadata": {}})["metadata"].get("resourceVersion", ""))
        state = sealed["metadata"]["annotations"][DIGEST_ANNOTATION], version
        if not version or same.get(ref) != state:
            change = _change(sealed, found, known.get(ref, frozenset()))
            if change is not None:
                changes.append(change)
                continue
        settled[ref] = state
    superfluous = (
        item
        for ref, item in sorted(live.items())
        if ref not in kept
        and is_controlled_by(item, owner_uid)
        and "deletionTimestamp" not in item["metadata"]
    )
    return Plan(tuple(changes), tuple(superfluous), settled)


def was_meant(manifest: Manifest, live: Object) -> bool:
    """Whether the last apply of the object had this manifest, regardless of later foreign changes."""
    sealed = seal(manifest)["metadata"]["annotations"][DIGEST_ANNOTATION]
    return bool(annotations_of(live).get(DIGEST_ANNOTATION) == sealed)


def seal(manifest: Manifest) -> Manifest:
    """The manifest with its digest. Entries with tenants are in it by their own digests (`without_bulk`)."""
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
