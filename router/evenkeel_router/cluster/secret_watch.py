"""Reload the configuration when the Secret that holds it changes.

Content is compared, since a Secret gets a new version even if only a label changes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from random import Random

from evenkeel_contract.names import ROUTER_CONFIG_KEY
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.routerdocument import parse_router_config
from evenkeel_contract.values import Fault
from evenkeel_kube.cache import Named
from evenkeel_kube.client import KubeClient
from evenkeel_kube.watch import Selection, Watcher

from evenkeel_router.cluster.config_watch import Apply, Complain, Loaded, hand_over

_log = logging.getLogger(__name__)


class Secret(Named, frozen=True):
    """The parts of a Secret that are read."""

    data: dict[str, str] | None = None
    """Base64."""


class SecretSource:
    """A watched Secret. `first` and `watch` see its content only while `run` is active."""

    def __init__(self, client: KubeClient, namespace: str, name: str, *, rng: Random) -> None:
        self._name = name
        self._last: Loaded | None = None
        self._changed = asyncio.Event()
        # With this selector, RBAC allows list and watch for one name.
        selection = Selection(
            Secret,
            f"/api/v1/namespaces/{namespace}/secrets",
            {"fieldSelector": f"metadata.name={name}"},
        )
        self._watcher = Watcher(client, selection, self._changed.set, rng=rng)

    async def run(self) -> None:
        """Watch the Secret, until cancelled."""
        await self._watcher.run()

    async def first(self) -> RouterConfig:
        """The first valid configuration. Until it comes, faults are logged."""
        while True:
            config, faults = await self._next()
            if config is not None:
                return config
            _log.error("waiting for a valid configuration: %s", [str(one) for one in faults])

    async def watch(self, apply: Apply, complain: Complain) -> None:
        while True:
            hand_over(await self._next(), apply, complain)

    async def _next(self) -> Loaded:
        """The next content that differs from the last."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            loaded = self._load()
            if loaded != self._last:
                self._last = loaded
                return loaded

    def _load(self) -> Loaded:
        secret = self._watcher.cache.objects.get(self._name)
        if secret is None:
            return None, (Fault("", f"there is no Secret {self._name}"),)
        entry = (secret.data or {}).get(ROUTER_CONFIG_KEY)
        if entry is None:
            return None, (Fault("", f"Secret {self._name} has no entry {ROUTER_CONFIG_KEY}"),)
        try:
            return parse_router_config(base64.b64decode(entry, validate=True))
        except binascii.Error as error:
            return None, (Fault("", f"{ROUTER_CONFIG_KEY} is not Base64: {error}"),)
