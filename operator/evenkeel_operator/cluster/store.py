"""What the operator has seen of the cluster: a memory that watches keep fresh. No I/O.

Place in the flow: events → **store** → which resources need a pass; observe reads it.

The surprising thing: it is allowed to be wrong. A watch that starts anew does not tell what was deleted meanwhile, so
every service is listed afresh now and then (`forget_children`), and the plan's effect is idempotent anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.names import SERVICE_LABEL

from evenkeel_operator.core.objects import KINDS, Object, Ref, labels_of, ref_of
from evenkeel_operator.core.tenants import hash_entries

SERVICE: Final = "FairInferenceService"
TENANT: Final = "InferenceTenant"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One resource that gets passes."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class Store:
    """Services, tenants, what was made for them, and hashes of the keys that tenants name."""

    def __init__(self) -> None:
        self._services: dict[str, dict[str, Object]] = defaultdict(dict)
        self._tenants: dict[str, dict[str, Object]] = defaultdict(dict)
        self._listed_tenants: set[str] = set()
        self._listed_services: set[str] = set()
        self._children: dict[Key, dict[Ref, Object]] = {}
        self._hashes: dict[tuple[str, str], Mapping[str, str] | None] = {}

    # What watches tell.

    def see(self, event: str | None, kind: str, item: Object) -> frozenset[Key]:
        """An object appeared, changed, or (`DELETED`) vanished; the resources that this concerns."""
        namespace = str(item["metadata"]["namespace"])
        gone = event == "DELETED"
        if kind == SERVICE:
            return self._see_service(namespace, item, gone=gone)
        if kind == TENANT:
            return self._see_tenant(namespace, item, gone=gone)
        found = self._see_child(namespace, kind, item, gone=gone)
        if kind == "Secret":
            found |= self._see_secret(namespace, item, gone=gone)
        return frozenset(found)

    def _see_service(self, namespace: str, item: Object, *, gone: bool) -> frozenset[Key]:
        name = str(item["metadata"]["name"])
        known = self._services[namespace].get(name)
        key = Key(SERVICE, namespace, name)
        if gone:
            self.forget_service(key)
        else:
            self._services[namespace][name] = _slim(item)
        changed = gone or known is None or _intent(known) != _intent(item)
        # Tenants say which services serve them.
        return frozenset({key, *(self.tenant_keys(namespace) if changed else ())})

    def _see_tenant(self, namespace: str, item: Object, *, gone: bool) -> frozenset[Key]:
        name = str(item["metadata"]["name"])
        known = self._tenants[namespace].get(name)
        if gone:
            self._tenants[namespace].pop(name, None)
        else:
            self._tenants[namespace][name] = _slim(item)
        own = Key(TENANT, namespace, name)
        if not gone and known is not None and _intent(known) == _intent(item):
            return frozenset({own})
        # Of two tenants that claim a key, the other one may be rid of its rival.
        return frozenset({own, *self.service_keys(namespace), *self.tenant_keys(namespace)})

    def _see_child(self, namespace: str, kind: str, item: Object, *, gone: bool) -> set[Key]:
        if kind not in KINDS:
            return set()
        # By its owner, since a label may be what somebody changed; by its label, for the same reason.
        named = {labels_of(item).get(SERVICE_LABEL), _owner_of(item)} - {None}
        keys = {Key(SERVICE, namespace, str(name)) for name in named}
        return {key for key in keys if self._child_concerns(key, kind, item, gone=gone)}

    def _child_concerns(self, key: Key, kind: str, item: Object, *, gone: bool) -> bool:
        children = self._children.get(key)
        if children is None:  # nobody has asked yet; the first pass lists
            return True
        ref = Ref(kind, str(item["metadata"]["name"]))
        known = children.get(ref)
        if gone:
            children.pop(ref, None)
            return True
        if known is not None and _version(known) >= _version(item):
            return False  # the echo of our own write
        children[ref] = _slim({"kind": kind, **item})
        return True

    def _see_secret(self, namespace: str, item: Object, *, gone: bool) -> set[Key]:
        """Every Secret comes by here; those that nobody named leave nothing behind."""
        where = (namespace, str(item["metadata"]["name"]))
        if where not in self._hashes:
            return set()
        hashes = None if gone else hash_entries(item)
        if self._hashes[where] == hashes:
            return set()
        self._hashes[where] = hashes
        return {*self.service_keys(namespace), *self.tenant_keys(namespace)}

    # What passes remember.

    def remember_service(self, item: Object) -> None:
        metadata = item["metadata"]
        self._services[str(metadata["namespace"])][str(metadata["name"])] = _slim(item)

    def remember_services(self, namespace: str, items: Iterable[Object]) -> None:
        self._services[namespace] = {str(item["metadata"]["name"]): _slim(item) for item in items}
        self._listed_services.add(namespace)

    def remember_tenants(self, namespace: str, items: Iterable[Object]) -> None:
        self._tenants[namespace] = {str(item["metadata"]["name"]): _slim(item) for item in items}
        self._listed_tenants.add(namespace)

    def remember_tenant(self, item: Object) -> None:
        metadata = item["metadata"]
        self._tenants[str(metadata["namespace"])][str(metadata["name"])] = _slim(item)

    def remember_children(self, key: Key, items: Iterable[Object]) -> None:
        self._children[key] = {ref_of(item): _slim(item) for item in items}

    def remember_child(self, key: Key, item: Object) -> None:
        self._children.setdefault(key, {})[ref_of(item)] = _slim(item)

    def remember_secret(self, namespace: str, name: str, item: Object | None) -> None:
        self._hashes[namespace, name] = None if item is None else hash_entries(item)

    def forget_children(self, key: Key) -> None:
        """The next pass lists them."""
        self._children.pop(key, None)

    def forget_child(self, key: Key, ref: Ref) -> None:
        self._children.get(key, {}).pop(ref, None)

    def forget_service(self, key: Key) -> None:
        self._services[key.namespace].pop(key.name, None)
        self._children.pop(key, None)

    # What passes ask.

    def service(self, key: Key) -> Object | None:
        return self._services[key.namespace].get(key.name)

    def services(self, namespace: str) -> tuple[Object, ...] | None:
        """None where nobody has listed them yet."""
        if namespace not in self._listed_services:
            return None
        return tuple(self._services[namespace].values())

    def tenant(self, key: Key) -> Object | None:
        return self._tenants[key.namespace].get(key.name)

    def service_keys(self, namespace: str) -> frozenset[Key]:
        return frozenset(Key(SERVICE, namespace, name) for name in self._services[namespace])

    def all_service_keys(self) -> frozenset[Key]:
        return frozenset(
            key for namespace in self._services for key in self.service_keys(namespace)
        )

    def tenants(self, namespace: str) -> tuple[Object, ...] | None:
        """None where nobody has listed them yet."""
        if namespace not in self._listed_tenants:
            return None
        return tuple(self._tenants[namespace].values())

    def tenant_keys(self, namespace: str) -> frozenset[Key]:
        return frozenset(Key(TENANT, namespace, name) for name in self._tenants[namespace])

    def children(self, key: Key) -> Mapping[Ref, Object] | None:
        """None where nobody has listed them yet."""
        found = self._children.get(key)
        return None if found is None else dict(found)

    def hashes(self, namespace: str, name: str) -> tuple[bool, Mapping[str, str] | None]:
        """Whether the Secret was looked at, and the hashes in it (None: there is none)."""
        where = (namespace, name)
        return where in self._hashes, self._hashes.get(where)


def _slim(item: Object) -> dict[str, Any]:
    """Without what is never read here and makes up half of an object."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    return {**item, "metadata": metadata}


def _owner_of(item: Object) -> str | None:
    owners = item["metadata"].get("ownerReferences") or ()
    names = (owner["name"] for owner in owners if owner.get("kind") == SERVICE)
    return next(names, None)


def _version(item: Object) -> int:
    """Resource versions are decimal and grow (Kubernetes 1.35 says so; every etcd did it before)."""
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


def _intent(item: Object) -> tuple[Any, ...]:
    """What people say of a resource; the rest is what we said ourselves."""
    metadata = item["metadata"]
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("labels"),
        metadata.get("annotations"),
        metadata.get("deletionTimestamp"),
    )
