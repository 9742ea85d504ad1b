"""`kubectl get -o json` over one open connection: tests poll, and each kubectl costs a tenth of a second of CPU."""

from __future__ import annotations

import base64
import ssl
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

_AGGREGATED: Final = {
    "Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
}
_SELECTORS: Final = {"-l": "labelSelector", "--field-selector": "fieldSelector"}


class NotReadable(Exception):
    """These arguments, or this cluster's credentials, are left to kubectl."""


class ReadError(Exception):
    """The API server refuses; the text is its message."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A resource that the API server offers."""

    kind: str
    api: str
    """As `apps/v1`."""
    plural: str
    namespaced: bool

    def path(self, namespace: str | None) -> str:
        where = f"namespaces/{namespace}/" if self.namespaced and namespace else ""
        return f"/{'apis' if '/' in self.api else 'api'}/{self.api}/{where}{self.plural}"


@dataclass(slots=True)
class Reader:
    """One cluster, by the client certificate of its kubeconfig."""

    http: httpx.Client
    kinds: dict[str, _Kind] = field(default_factory=dict)
    """By plural, singular and short name."""

    def get(self, arguments: tuple[str, ...]) -> Any:
        """The object or the list. Raises `NotReadable`, `ReadError`, or `httpx.TransportError`."""
        namespace, everywhere, query, words = None, False, {}, list[str]()
        rest = iter(arguments)
        for word in rest:
            if word == "-n":
                namespace = next(rest)
            elif word in ("-A", "--all-namespaces"):
                everywhere = True
            elif word in _SELECTORS:
                query[_SELECTORS[word]] = next(rest)
            elif word.startswith("-"):
                raise NotReadable(word)
            else:
                words.append(word)
        names, *given = words[0].split("/") + words[1:]
        kinds = [self._kind(name) for name in names.split(",")]
        if len(given) > 1 or (given and len(kinds) > 1):
            raise NotReadable("several names")
        if not everywhere and namespace is None and any(kind.namespaced for kind in kinds):
            raise NotReadable("the namespace of the context")
        if given:
            return _plain(self._read(f"{kinds[0].path(namespace)}/{given[0]}"))
        items = [
            _plain({"apiVersion": kind.api, "kind": kind.kind, **item})
            for kind in kinds
            for item in self._read(kind.path(namespace), query)["items"]
        ]
        return {"apiVersion": "v1", "kind": "List", "items": items}

    def _kind(self, name: str) -> _Kind:
        if name not in self.kinds:
            self.kinds = self._discovered()
        if name not in self.kinds:
            raise NotReadable(name)
        return self.kinds[name]

    def _discovered(self) -> dict[str, _Kind]:
        found: dict[str, _Kind] = {}
        for root in ("/api", "/apis"):
            for group in self._read(root, headers=_AGGREGATED)["items"]:
                newest = group["versions"][0]
                of_group = group.get("metadata", {}).get("name")
                api = f"{of_group}/{newest['version']}" if of_group else newest["version"]
                for one in newest["resources"]:
                    kind = _Kind(one["responseKind"]["kind"], api, one["resource"],
                                 one["scope"] == "Namespaced")  # fmt: skip
                    for name in (kind.plural, one["singularResource"], *one.get("shortNames", ())):
                        found.setdefault(name, kind)
        return found

    def _read(
        self, path: str, query: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> Any:
        answer = self.http.get(path, params=query, headers=headers)
        if not answer.is_success:
            # An API that went and came again may have another version.
            self.kinds = {}
            said = answer.json() if answer.headers["content-type"] == "application/json" else {}
            reason, message = said.get("reason"), said.get("message", answer.text)
            raise ReadError(f"Error from server ({reason}): {message}")
        return answer.json()


def _plain(item: Any) -> Any:
    item["metadata"].pop("managedFields", None)
    return item


@cache
def reader(kubeconfig: Path) -> Reader:
    """Raises `NotReadable` where the first user has no client certificate in the file."""
    try:
        plain = yaml.safe_load(kubeconfig.read_text())
        (cluster,), (user,) = plain["clusters"], plain["users"]
        server, authority = (
            cluster["cluster"][name] for name in ("server", "certificate-authority-data")
        )
        pair = [user["user"][f"client-{name}-data"] for name in ("certificate", "key")]
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise NotReadable(str(kubeconfig)) from error
    context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\n".join(map(base64.b64decode, pair)))
        file.flush()
        context.load_cert_chain(file.name)
    return Reader(httpx.Client(base_url=server, verify=context, timeout=30))
