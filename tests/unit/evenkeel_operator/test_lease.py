"""One of several operators leads: by a Lease, on each one's own clock."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime
from typing import Any

from evenkeel_kube.client import KubeClient, Overloaded, Unreachable
from evenkeel_operator.cluster.lease import Lease, LeaseTiming
from evenkeel_operator.core.objects import Object

QUICK = LeaseTiming(duration_s=1, renew_deadline_s=0.3, retry_s=0.01)
PATIENT = LeaseTiming(duration_s=3600, renew_deadline_s=0.3, retry_s=0.01)


class LeaseServer(KubeClient):
    """One Lease, with the API server's optimistic locking."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.is_down = False
        self.hangs = False
        self.written = asyncio.Event()
        self.reads = 0
        self._version = 0

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        await self._check()
        self.reads += 1
        return copy.deepcopy(self.lease)

    async def create(self, manifest: Object) -> Object:
        await self._check()
        if self.lease is not None:
            raise Overloaded(409, "exists")
        return self._store(manifest)

    async def replace(self, manifest: Object) -> Object:
        await self._check()
        assert self.lease is not None
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Overloaded(409, "changed")
        return self._store(manifest)

    def _store(self, manifest: Object) -> Object:
        self._version += 1
        self.written.set()
        metadata = {**manifest["metadata"], "resourceVersion": str(self._version)}
        self.lease = copy.deepcopy({**manifest, "metadata": metadata})
        return copy.deepcopy(self.lease)

    async def _check(self) -> None:
        if self.is_down:
            raise Unreachable("down")
        if self.hangs:
            await asyncio.Event().wait()

    @property
    def holder(self) -> str:
        return "" if self.lease is None else str(self.lease["spec"]["holderIdentity"])


def candidate(server: LeaseServer, name: str, timing: LeaseTiming = QUICK) -> Lease:
    return Lease(
        server,
        namespace="n",
        name="l",
        identity=name,
        clock=lambda: datetime.now(UTC),  # noqa: TID251
        timing=timing,
    )


async def test_the_first_one_leads_and_the_second_one_waits() -> None:
    server = LeaseServer()
    first, second = candidate(server, "a", PATIENT), candidate(server, "b", PATIENT)
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    for _ in range(20):
        await asyncio.sleep(0)
    assert (server.holder, waiting.done()) == ("a", False)
    await first.release()
    await waiting
    assert server.holder == "b"
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 2


async def test_a_lease_without_renewal_expires() -> None:
    server = LeaseServer()
    await candidate(server, "a").acquire()
    await candidate(server, "b").acquire()
    assert server.holder == "b"


async def test_who_leads_renews_without_reading() -> None:
    server = LeaseServer()
    first = candidate(server, "a", PATIENT)
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    async with asyncio.timeout(30):
        for _ in range(3):
            server.written.clear()
            await server.written.wait()
    keeping.cancel()
    assert server.reads == 1


async def test_who_leads_keeps_the_lease_that_another_hand_has_annotated() -> None:
    server = LeaseServer()
    first = candidate(server, "a", PATIENT)
    await first.acquire()
    lease = await server.get("Lease", "n", "l")
    assert lease is not None
    await server.replace({**lease, "metadata": {**lease["metadata"], "annotations": {"by": "me"}}})
    keeping = asyncio.create_task(first.keep())
    server.written.clear()
    async with asyncio.timeout(30):
        await server.written.wait()
    keeping.cancel()
    assert server.holder == "a"
    assert server.lease is not None
    assert server.lease["metadata"]["annotations"] == {"by": "me"}


async def test_who_leads_keeps_the_lease_through_a_short_outage() -> None:
    server = LeaseServer()
    first = candidate(server, "a")
    await first.acquire()
    keeping = asyncio.create_task(first.keep())
    server.is_down = True
    await asyncio.sleep(0.05)
    server.is_down = False
    server.written.clear()
    async with asyncio.timeout(30):
        await server.written.wait()
    assert not keeping.done()
    keeping.cancel()


async def test_who_cannot_renew_stops_before_the_lease_runs_out_for_others() -> None:
    server = LeaseServer()
    first = candidate(server, "a")
    await first.acquire()
    server.is_down = True
    async with asyncio.timeout(30):
        await first.keep()


async def test_who_finds_another_name_in_it_stops() -> None:
    server = LeaseServer()
    first = candidate(server, "a")
    await first.acquire()
    lease = await server.get("Lease", "n", "l")
    assert lease is not None
    theirs = {**lease["spec"], "holderIdentity": "b", "leaseDurationSeconds": 3600}
    await server.replace({**lease, "spec": theirs})
    async with asyncio.timeout(30):
        await first.keep()
    await first.release()
    assert server.holder == "b"


async def test_a_renewal_that_hangs_late_does_not_prolong_leadership() -> None:
    server = LeaseServer()
    one = candidate(server, "one")
    await one.acquire()
    server.is_down = True
    keeping = asyncio.create_task(one.keep())
    await asyncio.sleep(0.8 * QUICK.renew_deadline_s)
    server.is_down, server.hangs = False, True
    # The deadline is 0.06 s away; a time limit of its own would give the attempt 0.3 s.
    async with asyncio.timeout(0.5 * QUICK.renew_deadline_s):
        await keeping
