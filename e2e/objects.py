"""All objects of a service, value by value, for tests that change a spec and compare all results.

Through `kubectl proxy`, since a look at every kind costs milliseconds this way. In such a namespace no pod starts: what the
operator makes does not wait for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
from evenkeel_operator.core.objects import KINDS

from e2e.installed import Namespace
from e2e.operators import wait_until
from tests.support.crd_documents import GONE, Document, changed
from tests.support.effects import LABELS, SECRETS, Place, secret, values

SETTLED_S = 60.0
NO_PODS = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "no-pods"},
    "spec": {"hard": {"pods": "0"}},
}
WITHOUT_VOLUMES = {"spec.model.cache": GONE, "spec.router.state": {"store": "Peers"}}


def prepare(team: Namespace) -> None:
    """No pods, and the Secrets that specs refer to."""
    team.apply(NO_PODS, *map(secret, SECRETS))


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of one namespace."""

    api: httpx.Client
    namespace: str

    def become(self, document: Document) -> None:
        """Create it or replace it, whole. Volumes that cannot change go, and come back otherwise."""
        answer = self._put(document)
        if answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY:
            self.without_volumes(document)
            answer = self._put(document)
        assert answer.is_success, answer.text

    def without_volumes(self, document: Document) -> None:
        """Wait until there are none, so that the next service gets new ones."""
        answer = self._put(changed(document, WITHOUT_VOLUMES))
        assert answer.is_success, answer.text
        name = document["metadata"]["name"]
        wait_until(lambda: not self._items("PersistentVolumeClaim", name), "no volumes")

    def _put(self, document: Document) -> httpx.Response:
        metadata = document["metadata"]
        labels = LABELS if document["kind"] == "InferenceTenant" else {}
        path = self._path(document["kind"], metadata["name"])
        while True:
            found = self.api.get(path)
            if found.status_code == httpx.codes.NOT_FOUND:
                whole = {**document, "metadata": {**metadata, "labels": labels}}
                return self.api.post(path.rpartition("/")[0], json=whole)
            answer = self.api.put(path, json={**found.json(), "spec": document["spec"]})
            if (
                answer.status_code != httpx.codes.CONFLICT
            ):  # the operator changed the status meanwhile
                return answer

    def _path(self, kind: str, name: str) -> str:
        plural = f"{kind.lower()}s"
        return f"/apis/evenkeel.dev/v1alpha1/namespaces/{self.namespace}/{plural}/{name}"

    def service(self, name: str) -> Any:
        """The stored object."""
        return self.api.get(self._path("FairInferenceService", name)).raise_for_status().json()

    def is_attended(self, name: str) -> bool:
        """Whether the operator has made a pass over the spec as it is now."""
        found = self.service(name)
        return bool(
            found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
        )

    def seen(self, name: str) -> dict[Place, Any]:
        """Every value of every object of the service, and what its status says, by its place."""
        status = self.service(name).get("status", {})
        found: dict[Place, Any] = {("status", one): status.get(one) for one in ("url", "image")}
        for kind in KINDS:
            for item in self._items(kind, name):
                called = item["metadata"]["name"]
                # The spec itself is remembered there: of course it changes.
                if not called.endswith("-accepted"):
                    whole = {**item, "kind": kind}
                    found |= {(f"{kind}/{called}", *at): value for at, value in values(whole)}
        return found

    def at_rest(self, name: str) -> dict[Place, Any]:
        """Wait until the operator has made a pass and two reads are equal."""
        wait_until(lambda: self.is_attended(name), f"a pass over {name}")
        before = self.seen(name)
        while True:
            time.sleep(1)
            after = self.seen(name)
            if after == before:
                return after
            before = after

    def _items(self, kind: str, service: str) -> list[Any]:
        where = KINDS[kind]
        root = "/apis" if where.group else "/api"
        answer = self.api.get(
            f"{root}/{where.api}/namespaces/{self.namespace}/{where.plural}",
            params={"labelSelector": f"evenkeel.dev/service={service}"},
        )
        found: list[Any] = answer.raise_for_status().json()["items"]
        return found


def settled(read: Callable[[], Any], want: Any) -> Any:
    """Read until the condition is met or the time limit is over; returns the last value."""
    deadline_s = time.monotonic() + SETTLED_S
    found = read()
    while found != want and time.monotonic() < deadline_s:
        time.sleep(0.1)
        found = read()
    return found
