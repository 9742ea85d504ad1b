"""What keeps the gates in step with the engines and the other routers (R12), in regular intervals:

- read each engine's queue from its `/metrics`;
- publish what clients have at each gate in the ledger, and take what other routers published, as often as routers exchange it;
- call requests that have waited too long to replicas that have room;
- free places of routers that do not ask any more;
- hand a replica back whose engine reports that it orders its queue itself.
"""

from __future__ import annotations

import asyncio

import aiohttp
from evenkeel_contract.routerconfig import ReplicaConfig

from evenkeel_router.fleet.probe import ask
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.gate.engine_load import EngineLoad, read_load
from evenkeel_router.gate.gates import Gates
from evenkeel_router.gate.lending import Lending
from evenkeel_router.settings import Settings


class GateUpkeep:
    """The upkeep of one router's gates."""

    def __init__(
        self,
        settings: Settings,
        replicas: Replicas,
        gates: Gates,
        session: aiohttp.ClientSession,
        *,
        lending: Lending,
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._gates = gates
        self._lending = lending
        self._session = session
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        now = asyncio.get_running_loop().time
        shared_s = now()
        try:
            while True:
                await asyncio.sleep(self._settings.timing.gate_interval_s)
                self._gates.hand_back()
                has_news = now() - shared_s >= self._settings.config.state.exchange_interval_s
                for name in self._gates.in_use():
                    self._read(name)
                    if has_news:
                        self._gates.publish(name)
                        self._gates.share(name)
                        await asyncio.sleep(0)
                if has_news:
                    shared_s = now()
                self._lending.expire()
                self._gates.rebalance()
        finally:
            reading = list(self._reading.values())
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    def _read(self, name: str) -> None:
        """Begin to read an engine's load, unless the last reading still waits for its answer."""
        if name in self._reading or name not in self._replicas.configured:
            return
        task = self._reading[name] = asyncio.create_task(self._take(name))
        task.add_done_callback(lambda _: self._reading.pop(name))

    async def _take(self, name: str) -> None:
        gate = self._gates.gate(name)
        load = await self._load(self._replicas.configured[name])
        if gate is not None and gate is self._gates.gate(name):  # else of the process before
            self._gates.read(name, load)

    async def _load(self, replica: ReplicaConfig) -> EngineLoad | None:
        """The engine's load from `GET /metrics`; None if the engine does not give any."""
        try:
            async with ask(self._session, replica, "/metrics") as response:
                return read_load(await response.read()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
