"""A cluster in memory, at the operator's one seam to the network: it keeps what is applied, and counts writes.

It does what server-side apply does for a single manager: fields of the last apply that the next one lacks go.
It fails on demand, so that a pass can be cut off at every write.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from evenkeel_contract.names import USE_LABEL
from evenkeel_kube.client import KubeClient, Overloaded, Refused, Unreachable
from evenkeel_operator.cluster.observe import INGRESS_CLASSES
from evenkeel_operator.core.objects import KINDS, Object

Where = tuple[str, str, str]


class FakeCluster(KubeClient):
    """The verbs of `KubeClient` on a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[Where, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.reads: list[str] = []
        """What was read or listed: kinds, with the selector of a list."""
        self.events: list[Object] = []
        self.optional: frozenset[str] = frozenset()
        self.fails_after: int | None = None
        """Writes until the connection breaks, right after the last of them was carried out."""
        self.refuses: Callable[[Object], str | None] = lambda _: None
        self.fails: Callable[[Object], str | None] = lambda _: None
        """The answer with status 500 to a write, also in a dry run, as of a webhook that is down."""
        self.forbids: Callable[[str, str], bool] = lambda kind, namespace: False
        """Whether the right to read a kind in a namespace is missing."""
        self.scales: dict[tuple[str, str, str], int] = {}
        """(apiVersion, kind, name) → replicas that were set through `/scale`."""
        self.scale_labels: Mapping[str, str] = {USE_LABEL: "true"}
        """Labels of the objects that are scaled."""
        self.ingress_classes: list[Object] = []
        self._versions = itertools.count(1)
        self._ours: dict[Where, Object] = {}
        """Annotations of pods that were applied: of what others made, an apply touches nothing else."""

    def put(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Somebody else writes an object, whole."""
        found = copy.deepcopy(dict(item))
        found["metadata"]["resourceVersion"] = str(next(self._versions))
        found["metadata"].setdefault("uid", f"uid-{found['metadata']['resourceVersion']}")
        self.objects[_where(found)] = found
        return found

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self.reads.append(f"{kind} {name}")
        self._check_right("get", kind, namespace)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def list_all(
        self, kind: str, namespace: str, *, selector: str = "", fields: str = ""
    ) -> list[Object]:
        self.reads.append(f"{kind} {selector}{fields}".rstrip())
        self._check_right("list", kind, namespace)
        terms = [term.partition("=") for term in selector.split(",") if term]
        return [
            copy.deepcopy(item)
            for (k, n, _), item in self.objects.items()
            if k == kind and namespace in ("", n) and _matches(item, terms) and _has(item, fields)
        ]

    async def pages(
        self, kind: str, namespace: str, *, selector: str = "", fields: str = "", limit: int = 500
    ) -> AsyncIterator[list[Object]]:
        found = await self.list_all(kind, namespace, selector=selector, fields=fields)
        for start in range(0, len(found), limit):
            yield found[start : start + limit]

    async def apply(self, manifest: Object, *, dry_run: bool = False) -> Object:
        self._check_write(manifest)
        if dry_run:
            return manifest
        if manifest["kind"] == "Pod":
            return self._apply_to_pod(manifest)
        before = self.objects.get(_where(manifest), {})
        found = copy.deepcopy(dict(manifest))
        for kept in ("uid", "generation"):
            if kept in before.get("metadata", {}):
                found["metadata"][kept] = before["metadata"][kept]
        if "status" in before:
            found["status"] = before["status"]
        if before.get("spec") != found.get("spec"):
            found["metadata"]["generation"] = before.get("metadata", {}).get("generation", 0) + 1
        return self._written(f"apply {found['kind']} {found['metadata']['name']}", found)

    async def apply_status(self, manifest: Object) -> Object:
        self._check_write({**manifest, "kind": f"{manifest['kind']}/status"})
        found = copy.deepcopy(self.objects[_where(manifest)])
        given = copy.deepcopy(dict(manifest["status"]))
        if manifest["kind"] == "Pod":  # its status has several authors, and so have its conditions
            types = {condition["type"] for condition in given["conditions"]}
            before = found.get("status", {})
            others = [c for c in before.get("conditions", []) if c["type"] not in types]
            given = {**before, "conditions": [*others, *given["conditions"]]}
        found["status"] = given
        return self._written(f"status {found['kind']} {found['metadata']['name']}", found)

    async def create(self, manifest: Object) -> Object:
        self.events.append(manifest)
        return manifest

    async def delete(self, item: Object) -> None:
        self.objects.pop(_where(item), None)
        self._count(f"delete {item['kind']} {item['metadata']['name']}")

    async def scaled(
        self, api: str, kind: str, namespace: str, name: str
    ) -> tuple[Mapping[str, str], int]:
        return self.scale_labels, self.scales.get((api, kind, name), 0)

    async def set_scale(
        self, api: str, kind: str, namespace: str, name: str, *, replicas: int
    ) -> None:
        self._check_write({"kind": kind, "metadata": {"name": name}})
        self.scales[api, kind, name] = replicas
        self._count(f"scale {kind} {name}")

    async def read(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        assert path == INGRESS_CLASSES
        return {"items": self.ingress_classes}

    async def kinds_of(self, api: str) -> frozenset[str]:
        return frozenset(kind for kind in self.optional if KINDS[kind].api == api)

    def _check_right(self, verb: str, kind: str, namespace: str) -> None:
        if self.forbids(kind, namespace):
            user = "system:serviceaccount:evenkeel-system:evenkeel"
            message = (
                f'User "{user}" cannot {verb} resource "{kind}" in the namespace "{namespace}"'
            )
            raise Refused(403, f"{kind} is forbidden: {message}")

    def _check_write(self, item: Object) -> None:
        if (why := self.refuses(item)) is not None:
            raise Refused(422, why)
        if (why := self.fails(item)) is not None:
            raise Overloaded(500, why)

    def _apply_to_pod(self, manifest: Object) -> Object:
        where, metadata = _where(manifest), manifest["metadata"]
        found = copy.deepcopy(self.objects.get(where))
        if found is None or found["metadata"]["uid"] != metadata["uid"]:
            raise Overloaded(409, "the uid is not that of an object that is there")
        annotations = found["metadata"].setdefault("annotations", {})
        for name in self._ours.get(where, {}):
            annotations.pop(name, None)
        self._ours[where] = metadata.get("annotations", {})
        annotations |= self._ours[where]
        return self._written(f"apply Pod {metadata['name']}", found)

    def _written(self, what: str, item: dict[str, Any]) -> Object:
        written = self.put(item)
        self._count(what)
        return copy.deepcopy(written)

    def _count(self, what: str) -> None:
        self.writes.append(what)
        if self.fails_after is not None and len(self.writes) >= self.fails_after:
            raise Unreachable("the connection broke")


def _matches(item: Object, terms: Iterable[tuple[str, str, str]]) -> bool:
    """By labels: `name=value`, or `name` for any value."""
    labels = item["metadata"].get("labels") or {}
    return all(
        name in labels and (not sign or labels[name] == value) for name, sign, value in terms
    )


def _where(item: Object) -> Where:
    metadata = item["metadata"]
    return str(item["kind"]), str(metadata["namespace"]), str(metadata["name"])


def _has(item: Object, fields: str) -> bool:
    """Whether the object has a field with a value: `a.b=value`."""
    path, _, value = fields.partition("=")
    found: Any = item
    for name in path.split(".") if fields else ():
        found = (found or {}).get(name)
    return not fields or found == value
