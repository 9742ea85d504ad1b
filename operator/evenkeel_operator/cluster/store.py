"""A cache of the cluster's objects, kept up to date by watches. No I/O.

The cache may be wrong: a watch that starts again does not report deletions in between. So everything is listed again
at intervals. A plan can be executed twice without harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from evenkeel_contract.names import GATEWAY_LABEL, SERVICE_LABEL, gateway_base

from evenkeel_operator.cluster.object_table import ObjectTable, version_of
from evenkeel_operator.core import objects
from evenkeel_operator.core.neighbours import hosts_held, hosts_of, overlap
from evenkeel_operator.core.objects import KINDS, Object, Ref, intent_of, labels_of, ref_of
from evenkeel_operator.core.roster import Roster
from evenkeel_operator.core.tenants import NamedSecret, read_secret
from evenkeel_operator.core.workload import engine_of, is_broken

SERVICE: Final = "FairInferenceService"
TENANT: Final = "InferenceTenant"
GATEWAY: Final = "FairInferenceGateway"
SCALER: Final = "HorizontalPodAutoscaler"
NODE: Final = "Node"
NAMESPACE: Final = "Namespace"
POD: Final = "Pod"
SLICE: Final = "EndpointSlice"
POOL: Final = "InferencePool"


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One resource that gets passes."""

    kind: str
    namespace: str
    name: str

    @property
    def base(self) -> str:
        """What the names of its objects begin with, and their label `evenkeel.dev/service`."""
        return gateway_base(self.name) if self.kind == GATEWAY else self.name

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Hashes:
    """A Secret that a resource names."""

    version: int
    secret: NamedSecret | None
    """The Secret as it was read; None: there is no such Secret."""
    stale: bool = False
    """Whether the Secret changed since: an event has only its metadata."""


class Store:
    """Services, tenants, scalers, generated objects, and hashes of the keys that tenants name."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], ObjectTable[str]] = {}
        self._children: dict[Key, ObjectTable[Ref]] = {}
        self._endpoints: dict[Key, ObjectTable[str]] = {}
        self._hashes: dict[tuple[str, str], Hashes] = {}
        self._rosters: dict[str, Roster] = {}
        self._touched: dict[str, set[str]] = {}
        """Namespace → Secrets that were read or changed since the roster learnt them."""
        self._stale: dict[Key, set[Ref]] = {}
        """Service → its Secrets of which an event had only the metadata."""
        self._writes: dict[tuple[Key, Ref], list[tuple[Object, bool]]] = {}
        """Object that a pass writes at the moment → its events meanwhile, and whether each is a deletion."""
        self.cordoned: set[str] = set()
        """Cordoned nodes."""
        self.terminating: set[str] = set()
        """Namespaces that are being deleted, or that are gone: the API server refuses new objects there."""
        self._uids: dict[str, str] = {}
        """Namespace → its uid."""
        self._pods: dict[Key, dict[str, int]] = {}
        """Service → engine pods that wait for routers or are marked → their versions."""
        self._tenants_of: dict[Key, str] = {}
        """Service → the other namespace whose tenants its last pass used."""
        self._held: dict[Key, frozenset[str]] = {}
        """Service → the hosts that it had in its last event."""
        self._served: dict[Key, tuple[object, ...]] = {}
        """Gateway → what services behind it read in its status, as of its last event."""
        self._broken: set[tuple[str, str]] = set()
        """Namespaces and names of pods of which a container ended or cannot start; the Deployment does not report
        these."""

    def named(self, kind: str, namespace: str) -> ObjectTable[str]:
        """All services, tenants or scalers of a namespace, by name."""
        found = self._tables.get((kind, namespace))
        if found is None:
            many = kind == TENANT
            found = self._tables[kind, namespace] = ObjectTable(_name_of, packed=many, alike=many)
        return found

    def children(self, key: Key) -> ObjectTable[Ref]:
        """The generated objects of a service."""
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = ObjectTable(ref_of, packed=True)
        return found

    def endpoints(self, key: Key) -> ObjectTable[str]:
        """The EndpointSlices of a service's external engines, by name."""
        return self._endpoints.setdefault(key, ObjectTable(_name_of))

    def roster(self, namespace: str) -> Roster:
        """The tenants of a namespace, as of the last `Observer.roster`."""
        return self._rosters.setdefault(namespace, Roster())

    def take_touched(self, namespace: str) -> frozenset[str]:
        """Named Secrets of a namespace that were read or changed since the last call."""
        return frozenset(self._touched.pop(namespace, ()))

    def _touch(self, where: tuple[str, str], hashes: Hashes) -> None:
        self._hashes[where] = hashes
        self._touched.setdefault(where[0], set()).add(where[1])

    def take_stale(self, key: Key) -> frozenset[Ref]:
        """The Secrets of a service that changed, and have to be read."""
        return frozenset(self._stale.pop(key, ()))

    @contextmanager
    def writing(self, key: Key, ref: Ref, wake: Callable[[Key], None]) -> Iterator[None]:
        """A pass writes an object and puts the answer into the table. Events of the object wait until then: that of the write itself
        may come before the answer, and would lead to another pass. `wake` is called as for any event for what is newer."""
        events = self._writes[key, ref] = []
        try:
            yield
        finally:
            del self._writes[key, ref]
            for item, gone in events:
                for concerned in self._see_made(
                    str(item["metadata"]["namespace"]), item, gone=gone
                ):
                    wake(concerned)

    def forget_endpoints(self, key: Key) -> None:
        """Forget the listed EndpointSlices of a service: they are to be listed again."""
        self._endpoints.pop(key, None)

    def keys(self, kind: str, namespace: str) -> frozenset[Key]:
        """The resources of a kind in a namespace."""
        return frozenset(Key(kind, namespace, name) for name in self.named(kind, namespace).ids)

    def keys_anywhere(self, *kinds: str) -> frozenset[Key]:
        """The resources of these kinds in all namespaces."""
        tables = [where for where in self._tables if where[0] in kinds]
        return frozenset(key for where in tables for key in self.keys(*where))

    def use_tenants(self, key: Key, namespace: str) -> None:
        """The service uses the tenants of this namespace."""
        if namespace == key.namespace:
            self._tenants_of.pop(key, None)
        else:
            self._tenants_of[key] = namespace

    def users(self, namespace: str) -> frozenset[Key]:
        """The services and gateways that may use the tenants of a namespace."""
        others = {key for key, used in self._tenants_of.items() if used == namespace}
        return self.keys(SERVICE, namespace) | self.keys(GATEWAY, namespace) | others

    def exposed_anywhere(self) -> tuple[Object, ...]:
        """The known FairInferenceServices and FairInferenceGateways of all namespaces."""
        return self._anywhere(SERVICE, GATEWAY)

    def using_tenants_of(self, namespace: str) -> tuple[Object, ...]:
        """The services of a namespace, and those of others whose newest spec names it."""
        found = self._anywhere(SERVICE)
        return tuple(
            one
            for one in found
            if namespace in (one["metadata"]["namespace"], objects.tenants_place(one))
        )

    def _anywhere(self, *kinds: str) -> tuple[Object, ...]:
        tables = [table for (kind, _), table in self._tables.items() if kind in kinds]
        return tuple(item for table in tables for item in table.items.values())

    def forget(self, key: Key) -> None:
        """The resource is gone."""
        self.named(key.kind, key.namespace).drop(key.name)
        self._children.pop(key, None)
        self._endpoints.pop(key, None)
        self._pods.pop(key, None)
        self._stale.pop(key, None)
        self._tenants_of.pop(key, None)
        self._served.pop(key, None)

    # Secrets.

    def hashes(self, namespace: str, name: str) -> Hashes | None:
        """Hashes of the entries of a Secret; None if it was not read since its last change."""
        found = self._hashes.get((namespace, name))
        return None if found is None or found.version < 0 or found.stale else found

    def expect_secret(self, namespace: str, name: str) -> int:
        """Call before the Secret is read: its events count from now on. Pass the result to `remember_secret`."""
        return self._hashes.setdefault((namespace, name), Hashes(-1, None)).version

    def remember_secret(
        self, namespace: str, name: str, item: Object | None, *, asked: int
    ) -> None:
        """Store the result of a read, unless an event of a newer version arrived in the meantime."""
        known = self._hashes[namespace, name]
        if known.version == asked or (item is not None and version_of(item) >= known.version):
            secret = None if item is None else read_secret(item)
            version = max(asked, 0) if item is None else version_of(item)
            self._touch((namespace, name), Hashes(version, secret))

    def secrets(self) -> frozenset[tuple[str, str]]:
        """Namespace and name of every Secret that a resource names."""
        return frozenset(self._hashes)

    def namespaces(self) -> frozenset[str]:
        """Namespaces that had a service or a tenant at any time."""
        return frozenset(namespace for _, namespace in self._tables)

    # Pods.

    def pods_to_check(self, key: Key) -> Mapping[str, int]:
        """Engine pods that a pass may have to write to. Call `note_checked_pods` afterwards."""
        return dict(self._pods.get(key, {}))

    def note_checked_pods(
        self, key: Key, noted: Mapping[str, int], *, still: Collection[str]
    ) -> None:
        """Remove the pods of `noted`, which were listed since; pods that later events added stay."""
        known = self._pods.get(key, {})
        past = {n for n, version in noted.items() if known.get(n) == version and n not in still}
        self._pods[key] = {name: known.get(name, 0) for name in (known.keys() - past) | set(still)}
        if not self._pods[key]:
            del self._pods[key]

    # Events.

    def see(self, event: str | None, kind: str, item: Object) -> frozenset[Key]:
        """Apply an event of an object. Returns the resources that need a pass."""
        gone = event == "DELETED"
        if kind in (NODE, NAMESPACE):
            see = self._see_node if kind == NODE else self._see_namespace
            return see(item, gone=gone)
        namespace = str(item["metadata"]["namespace"])
        if kind in (SERVICE, TENANT, GATEWAY):
            return self._see_resource(kind, namespace, item, gone=gone)
        if kind == POD:
            return self._see_pod(namespace, item, gone=gone)
        if kind in (SLICE, POOL):
            return self._see_external(kind, namespace, item, gone=gone)
        if kind == SCALER:
            self.named(SCALER, namespace).see(item, gone=gone)
            return self.keys(SERVICE, namespace)
        return self._see_made(namespace, {**item, "kind": kind}, gone=gone)

    def _see_made(self, namespace: str, item: Object, *, gone: bool) -> frozenset[Key]:
        """Objects of kinds that the operator makes."""
        for key in _owners(namespace, item) if self._writes else ():
            events = self._writes.get((key, ref_of(item)))
            if events is not None:
                events.append((item, gone))
                return frozenset()
        see = self._see_secret if item["kind"] == "Secret" else self._see_child
        return frozenset(see(namespace, item, gone=gone))

    def _see_node(self, item: Object, *, gone: bool) -> frozenset[Key]:
        """The status of a node changes often; whether it is cordoned changes rarely."""
        name = _name_of(item)
        cordoned = not gone and bool((item.get("spec") or {}).get("unschedulable"))
        if cordoned == (name in self.cordoned):
            return frozenset()
        self.cordoned ^= {name}
        return self.keys_anywhere(SERVICE)

    def _see_namespace(self, item: Object, *, gone: bool) -> frozenset[Key]:
        """Passes over the resources of a namespace that leaves write nothing from now on."""
        name, uid = _name_of(item), str(item["metadata"].get("uid", ""))
        leaves = gone or "deletionTimestamp" in item["metadata"]
        (self.terminating.add if leaves else self.terminating.discard)(name)
        # Watches that the operator has no right to any more do not report that the contents are gone.
        others = gone or self._uids.get(name, uid) != uid
        self._uids[name] = uid
        if not others:
            return frozenset()
        lost = self.keys(SERVICE, name) | self.keys(TENANT, name) | self.keys(GATEWAY, name)
        users = self.users(name)
        for key in lost:
            self.forget(key)
        self._tables = {where: table for where, table in self._tables.items() if where[1] != name}
        self._hashes = {where: one for where, one in self._hashes.items() if where[0] != name}
        self._rosters.pop(name, None)
        self._touched.pop(name, None)
        self._held = {key: hosts for key, hosts in self._held.items() if key.namespace != name}
        return lost | users

    def _see_pod(self, namespace: str, item: Object, *, gone: bool) -> frozenset[Key]:
        """Pods change often; most changes need no pass."""
        key = _key_of(namespace, item)
        engine = None if gone else engine_of(item)
        pods = self._pods.setdefault(key, {})
        before = pods.pop(_name_of(item), None)
        if engine is not None and engine.needs_a_look:
            pods[engine.name] = version_of(item)
        if not pods:
            del self._pods[key]
        changed = (before is None) == (_name_of(item) in pods)
        where, broken = (namespace, _name_of(item)), not gone and is_broken(item)
        if broken != (where in self._broken):
            self._broken ^= {where}
            changed = True
        return frozenset({key}) if changed else frozenset()

    def _see_external(
        self, kind: str, namespace: str, item: Object, *, gone: bool
    ) -> frozenset[Key]:
        """Slices and pools of engines that another owner made. Gateways write the status of a pool often."""
        if kind == SLICE:
            key = Key(SERVICE, namespace, labels_of(item).get(SERVICE_LABEL, ""))
            return frozenset({key}) if self.endpoints(key).see(item, gone=gone)[0] else frozenset()
        newer, known = self.named(POOL, namespace).see(item, gone=gone)
        same = not gone and known is not None and known.get("spec") == item.get("spec")
        return frozenset() if same or not newer else self.keys(SERVICE, namespace)

    def _see_resource(
        self, kind: str, namespace: str, item: Object, *, gone: bool
    ) -> frozenset[Key]:
        own = Key(kind, namespace, _name_of(item))
        # An event that is old for the table may still need a pass: a list of another pass may have been faster.
        _, known = self.named(kind, namespace).see(item, gone=gone)
        held = self._held.pop(own, None)
        served = self._see_served(own, item, gone=gone) if kind == GATEWAY else frozenset()
        if gone:
            self._children.pop(own, None)
        else:
            if hosts := hosts_held(item):
                self._held[own] = hosts
            # The table has the status that this operator wrote, before its event arrives.
            freed = bool(held) and held != hosts
            if known is not None and intent_of(known) == intent_of(item) and not freed:
                return frozenset({own, *served})
        if kind == TENANT:
            # A tenant names its services, and a service configures its routers with tenants. The first pass lists them.
            return frozenset({own}) | (
                self.users(namespace) if self._has_listed(kind, namespace) else frozenset()
            )
        versions = [one for one in (known, item) if one is not None]
        rivals = self._rivals(versions, held or frozenset())
        same = (
            known is not None
            and not gone
            and objects.chosen_tenants(known) == objects.chosen_tenants(item)
        )
        listed = self._has_listed(kind, namespace)
        places = {namespace, *map(objects.tenants_place, versions)} - {""}
        tenants = {key for place in places for key in self.keys(TENANT, place)}
        # Services and gateways name each other.
        others = self.keys(SERVICE, namespace) if kind == GATEWAY else self.keys(GATEWAY, namespace)
        return frozenset({own, *others, *rivals, *(() if same or not listed else tenants)})

    def _see_served(self, own: Key, item: Object, *, gone: bool) -> frozenset[Key]:
        """The services of the namespace, if the gateway serves others than in its last event, or became ready: they read that in
        its status. The table has the status that this operator wrote, before its event arrives."""
        before = self._served.pop(own, None)
        if not gone:
            status = item.get("status") or {}
            ready = bool((status.get("router") or {}).get("readyReplicas"))
            models = tuple(str(model.get("service")) for model in status.get("models") or ())
            self._served[own] = (ready, str(status.get("url") or ""), models)
        changed = before != self._served.get(own)
        return self.keys(SERVICE, own.namespace) if changed else frozenset()

    def _has_listed(self, kind: str, namespace: str) -> bool:
        """Whether a pass has used the list of a kind. Before, an event concerns no other resource."""
        return self.named(kind, namespace).is_listed

    def _rivals(self, versions: Iterable[Object], held: frozenset[str]) -> frozenset[Key]:
        """Services that have a host of a changed service, before or after its change; `held`: the hosts that it had."""
        hosts = held.union(*map(hosts_of, versions))
        return frozenset(
            Key(str(one.get("kind") or SERVICE), str(one["metadata"]["namespace"]), _name_of(one))
            for one in (self.exposed_anywhere() if hosts else ())
            if any(overlap(hosts, hosts_of(one)))
        )

    def _see_child(self, namespace: str, item: Object, *, gone: bool) -> set[Key]:
        if item["kind"] not in KINDS:
            return set()
        changed = {
            key for key in _owners(namespace, item) if self.children(key).see(item, gone=gone)[0]
        }
        return self._concerned(changed)

    def _concerned(self, owners: set[Key]) -> set[Key]:
        """The owners of changed objects; services behind a gateway report its routers, and ask them."""
        gateways = [key for key in owners if key.kind == GATEWAY]
        return owners.union(*(self.keys(SERVICE, key.namespace) for key in gateways))

    def _see_secret(self, namespace: str, item: Object, *, gone: bool) -> set[Key]:
        """Events of all Secrets arrive here, with their metadata; only those that a resource names or has are kept."""
        found, owners = self._see_named(namespace, item, gone=gone), _owners(namespace, item)
        changed = set[Key]()
        for key in owners:
            table, ref = self.children(key), ref_of(item)
            known = table.get(ref)
            if gone:
                if table.see(item, gone=True)[0]:
                    changed.add(key)
            elif table.is_listed and (known is None or version_of(known) < version_of(item)):
                self._stale.setdefault(key, set()).add(ref)
                changed.add(key)
        # A gateway configures its routers with those of its services, also with what this operator has just written.
        gateways = self.keys(GATEWAY, namespace) if any(k.kind == SERVICE for k in owners) else ()
        return {*found, *self._concerned(changed), *gateways}

    def _see_named(self, namespace: str, item: Object, *, gone: bool) -> set[Key]:
        where = (namespace, _name_of(item))
        known = self._hashes.get(where)
        old = known is not None and known.version + (not gone) > version_of(item)
        if known is None or old:
            return set()
        stale = not gone
        self._touch(where, Hashes(version_of(item), None if gone else known.secret, stale))
        if gone and known.secret is None and not known.stale:
            return set()
        tenants = self.roster(namespace).named_by(where[1])
        return {*self.users(namespace), *(Key(TENANT, namespace, name) for name in tenants)}


def _key_of(namespace: str, item: Object) -> Key:
    """The resource whose label an object has."""
    labels = labels_of(item)
    if GATEWAY_LABEL in labels:
        return Key(GATEWAY, namespace, labels[GATEWAY_LABEL])
    return Key(SERVICE, namespace, labels.get(SERVICE_LABEL, ""))


def _owners(namespace: str, item: Object) -> frozenset[Key]:
    """The resources that an object is of, by owner and by label: a person may have changed either."""
    if GATEWAY_LABEL in labels_of(item):
        return frozenset({_key_of(namespace, item)})
    named = {labels_of(item).get(SERVICE_LABEL), objects.owner_of(item, SERVICE)} - {None}
    return frozenset(Key(SERVICE, namespace, str(name)) for name in named)


def _name_of(item: Object) -> str:
    return str(item["metadata"]["name"])
