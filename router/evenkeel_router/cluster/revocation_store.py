"""Revocations of signed keys in a ConfigMap of the service, which outlives its routers.

Each revocation is one entry, so that several routers write without reading first: entries of equal names have equal subjects.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import sha256

import msgspec
from evenkeel_contract.revocations import Revocation, RevocationList
from evenkeel_kube.client import ApiError, ClusterError, KubeClient

_log = logging.getLogger(__name__)


class ConfigMapStore:
    """One ConfigMap, which the operator creates."""

    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"

    @property
    def place(self) -> str:
        return self._path

    async def load(self) -> Sequence[Revocation]:
        try:
            data = (await self._client.read(self._path)).get("data") or {}
        except ApiError as error:
            if error.status == 404:
                return ()
            raise OSError(str(error)) from error
        except ClusterError as error:
            raise OSError(str(error)) from error
        return [one for name, text in data.items() if (one := _read(name, text)) is not None]

    async def save(self, all_: RevocationList, added: Sequence[Revocation]) -> None:
        await self._merge({_name(one): msgspec.json.encode(one).decode() for one in added})

    async def drop(self, all_: RevocationList, gone: Sequence[Revocation]) -> None:
        await self._merge(dict.fromkeys(map(_name, gone)))

    async def _merge(self, entries: dict[str, str] | dict[str, None]) -> None:
        try:
            await self._client.merge(self._path, {"data": entries})
        except ClusterError as error:
            raise OSError(str(error)) from error


def _name(one: Revocation) -> str:
    return sha256(one.subject.encode()).hexdigest()[:40]


def _read(name: str, text: str) -> Revocation | None:
    """A revocation; None, with a line in the log, for an entry that cannot be read."""
    try:
        return msgspec.json.decode(text, type=Revocation)
    except msgspec.MsgspecError as error:
        _log.error("entry %s of the revocations cannot be read: %s", name, error)
        return None
