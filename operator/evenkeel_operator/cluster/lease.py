"""Leader election: the leader is the holder that the Lease names, as long as the holder renews it.

As in client-go, a candidate measures the lease's time by its own monotonic clock, from when it saw the Lease change.
docs/design/kubernetes-client.md says why this is not the elector of the official client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from evenkeel_kube.client import ClusterError, KubeClient, Overloaded

from evenkeel_operator.core.objects import Object

_log = logging.getLogger(__name__)

KIND: Final = "Lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Times of a leader election. The defaults are those of client-go."""

    duration_s: float = 15.0
    """How long other candidates wait after the last renewal."""
    renew_deadline_s: float = 10.0
    """How long the holder tries to renew before it stops; below the duration, so that there is one leader at most."""
    retry_s: float = 2.0


class Lease:
    """One candidate's view of the Lease."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], datetime],
        timing: LeaseTiming | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._timing = timing or LeaseTiming()
        self._seen: tuple[Any, float] = (None, 0.0)
        """The record as it was last seen to change, and when, on our own clock."""
        self._written: Object | None = None
        """The Lease that this candidate wrote last, if that succeeded."""

    async def acquire(self) -> None:
        """Returns once this candidate is the leader."""
        while not await self._attempt():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(self._timing.retry_s)
        _log.info("%s leads", self._identity)

    async def keep(self) -> None:
        """Renew, and return when that has failed for too long: the caller must stop acting at once."""
        loop = asyncio.get_running_loop()
        renewed_s = loop.time()
        while (deadline_s := renewed_s + self._timing.renew_deadline_s) > loop.time():
            try:
                # The total time is bounded: an attempt that hangs must not outlast the Lease.
                async with asyncio.timeout_at(deadline_s):
                    await asyncio.sleep(self._timing.retry_s)
                    if await self._attempt():
                        renewed_s = loop.time()
            except TimeoutError:
                continue
        _log.error("%s lost the lease", self._identity)

    async def release(self) -> None:
        """Let the next candidate lead at once."""
        try:
            lease = await self._client.get(KIND, self._namespace, self._name)
            if lease is not None and _holder(lease) == self._identity:
                await self._client.replace(_with_spec(lease, holderIdentity=""))
                _log.info("%s released the lease", self._identity)
        except ClusterError as error:
            _log.warning("cannot release the lease, it will expire: %s", error)

    async def _attempt(self) -> bool:
        """Whether this candidate holds the Lease now."""
        try:
            return await self._renew() or await self._take()
        except ClusterError as error:  # another candidate was faster, or there is no API server
            _log.debug("the lease was not taken: %s", error)
            return False

    async def _renew(self) -> bool:
        """Write without a read, as client-go does. The API server refuses it if the Lease has changed."""
        # Forgotten before the write: if that fails, the next attempt reads the Lease.
        last, self._written = self._written, None
        if last is not None:
            with suppress(Overloaded):
                self._written = await self._client.replace(self._taken(last))
        return self._written is not None

    async def _take(self) -> bool:
        lease = await self._client.get(KIND, self._namespace, self._name)
        if lease is None:
            new = {"metadata": {"name": self._name, "namespace": self._namespace}}
            self._written = await self._client.create(self._taken(new))
        elif self._may_take(lease):
            self._written = await self._client.replace(self._taken(lease))
        return self._written is not None

    def _may_take(self, lease: Object) -> bool:
        now_s = asyncio.get_running_loop().time()
        if lease.get("spec") != self._seen[0]:
            self._seen = (lease.get("spec"), now_s)
        duration_s = float((lease.get("spec") or {}).get("leaseDurationSeconds") or 0)
        # Since we saw it change, not since its `renewTime`: clocks of nodes differ.
        run_out = now_s - self._seen[1] >= duration_s
        return _holder(lease) in ("", self._identity) or run_out

    def _taken(self, lease: Object) -> dict[str, Any]:
        spec = lease.get("spec") or {}
        changes: dict[str, Any] = {"renewTime": self._stamp()}
        if _holder(lease) != self._identity:
            changes |= {
                "holderIdentity": self._identity,
                "acquireTime": changes["renewTime"],
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1,
                "leaseDurationSeconds": round(self._timing.duration_s),
            }
        return _with_spec(lease, **changes)

    def _stamp(self) -> str:
        return self._clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _with_spec(lease: Object, **changes: Any) -> dict[str, Any]:
    spec = {**(lease.get("spec") or {}), **changes}
    return {**lease, "kind": KIND, "apiVersion": "coordination.k8s.io/v1", "spec": spec}
