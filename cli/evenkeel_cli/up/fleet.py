"""A fleet of local processes: replicas and their routers, kept as a manifest says.

Place in the flow: manifest → `plan` → **fleet** → keepers → processes. What happens in a change, and why in this
order: new replicas are ready before the router hears of them; the router has let go of old ones before they
are asked to end (a replica that drains still takes new requests); nothing of the running fleet is touched
before all that is new is known to work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from evenkeel_contract.render import router_config
from evenkeel_contract.routerconfig import ListenConfig, ReplicaConfig, RouterConfig
from evenkeel_contract.spec import Runtime

from evenkeel_cli.manifest import Manifest
from evenkeel_cli.up import ports
from evenkeel_cli.up.keeper import Keeper
from evenkeel_cli.up.launcher import Launcher, Program
from evenkeel_cli.up.plan import Place, ReplicaCommand, plan_replicas, simulated
from evenkeel_cli.up.probes import Probes
from evenkeel_cli.up.routers import Router, count_of, further_listen, state_of
from evenkeel_cli.up.sglang import Engines, real
from evenkeel_cli.up.state import StateFolder, end, leftovers

Say = Callable[[str], None]

HOST: Final = "127.0.0.1"
ROUTING_LIMIT_S: Final = 10.0  # for a router to read its configuration and probe what is new
REPLICA_GRACE_S: Final = 60.0  # for streams that a replica which leaves still serves
STOP_GRACE_S: Final = 10.0  # for replicas once the router is gone: nobody listens any more
ROUTER_SLACK_S: Final = 5.0  # on top of the router's own drain


class Replica:
    """One replica: what it runs, its ports, its keeper."""

    def __init__(self, name: str, command: ReplicaCommand) -> None:
        self.name = name
        self.command = command
        self.ports = [ports.free_port(HOST) for _ in range(4)]
        self.keeper: Keeper

    def program(self) -> Program:
        """What to run. Ports stay over restarts, unless somebody else took them in between."""
        self.ports = [
            port if ports.is_free(HOST, port) else ports.free_port(HOST) for port in self.ports
        ]
        return self.command.at(self._place())

    def _place(self) -> Place:
        http, reports, kv_events, kv_replay = self.ports
        return Place(
            name=self.name,
            host=HOST,
            http_port=http,
            reports_port=reports,
            kv_events_port=kv_events,
            kv_replay_port=kv_replay,
        )

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._place().http_port}"

    def config(self) -> ReplicaConfig:
        """What the router is told of it."""
        place = self._place()
        return ReplicaConfig(
            name=self.name,
            url=self.url,
            reports=f"tcp://{HOST}:{place.reports_port}",
            kv_events=f"tcp://{HOST}:{place.kv_events_port}",
            kv_replay=f"tcp://{HOST}:{place.kv_replay_port}",
        )


class Fleet:
    """The running fleet; made by `running_fleet`. One change at a time."""

    def __init__(
        self,
        *,
        folder: StateFolder,
        probes: Probes,
        listen: ListenConfig,
        engines: Engines,
        say: Say,
    ) -> None:
        self.listen = listen
        self.replicas: dict[str, Replica] = {}
        self.routers: list[Router] = []
        self._folder = folder
        self._probes = probes
        self._engines = engines
        self._say = say
        self._launcher = Launcher(folder)
        self._keepers: set[Keeper] = set()
        """Of every process, those that only just start or leave included."""
        self._config: RouterConfig | None = None
        self._command_told: ReplicaCommand | None = None

    @property
    def url(self) -> str:
        """Where clients send requests."""
        return f"http://{self.listen.host}:{self.listen.traffic_port}"

    @property
    def admin_url(self) -> str:
        """Where `evenkeel top` looks."""
        return f"http://{self.listen.host}:{self.listen.admin_port}"

    async def apply(self, manifest: Manifest) -> None:
        """Make the fleet as `manifest` says; raises `FleetError`, and then the old one runs on."""
        command = await self._command(manifest)
        plan = plan_replicas(
            {name: replica.command for name, replica in self.replicas.items()},
            command=command,
            count=manifest.service.spec.initial_replicas,
        )
        # 1. What is new starts, and must get ready.
        new = await self._start([Replica(name, command) for name in plan.start])
        # 2. The router hears of the new and forgets the old.
        old = [self.replicas.pop(name) for name in plan.retire]
        self.replicas.update((replica.name, replica) for replica in new)
        await self._route(manifest)
        if not self.replicas:
            wait = manifest.service.spec.router.limits.queue_timeout.text
            self._say(
                f"no replica runs, as the file says 0: nothing is routable; requests wait up to "
                f"{wait} and then get 503"
            )
        # 3. What is old ends, with its work done.
        await self._stop((replica.keeper for replica in old), REPLICA_GRACE_S)
        for replica in old:
            self._say(f"{replica.name}: left, its work done")

    async def stop(self) -> None:
        """End everything in order: the router drains while the replicas still serve it."""
        await self._stop_routers(self.routers)
        await self._stop(self._keepers, STOP_GRACE_S)
        self._launcher.close()
        self._folder.forget()

    def kill(self) -> None:
        """End everything at once; `stop` still has to be awaited."""
        for keeper in self._keepers:
            keeper.kill()

    async def _stop(self, keepers: Iterable[Keeper], grace_s: float) -> None:
        stopping = list(keepers)
        await asyncio.gather(*(keeper.stop(grace_s) for keeper in stopping))
        self._keepers.difference_update(stopping)

    async def _command(self, manifest: Manifest) -> ReplicaCommand:
        if manifest.service.spec.engine.runtime is Runtime.SIMULATOR:
            return simulated(manifest.service)
        found = await asyncio.to_thread(real, manifest, self._engines)
        if found != self._command_told:
            self._say(found.summary())
            self._command_told = found
        return found

    async def _start(self, replicas: list[Replica]) -> list[Replica]:
        for replica in replicas:
            replica.keeper = self._keep(replica.name, replica.program)
        try:
            await asyncio.gather(*(replica.keeper.get_ready() for replica in replicas))
        except BaseException:  # a fault, or Ctrl-C: nothing that was begun may stay
            await self._stop((replica.keeper for replica in replicas), STOP_GRACE_S)
            raise
        for replica in replicas:
            self._say(f"{replica.name}: ready at {replica.url} (process {replica.keeper.pid})")
        return replicas

    async def _route(self, manifest: Manifest) -> None:
        self._config = router_config(
            manifest.service,
            tenants=manifest.tenants,
            key_hashes=manifest.key_hashes,
            replicas=[replica.config() for replica in self.replicas.values()],
            listen=self.listen,
            state=state_of(manifest, self._folder),
        )
        running, wanted = list(self.routers), count_of(manifest)
        new = [self._new_router(index) for index in range(len(running), wanted)]
        self.routers += new
        self._publish()
        try:
            await self._start_routers(new)
        except BaseException:
            self.routers = running
            self._publish()
            raise
        await asyncio.gather(*(self._follow(router) for router in running[:wanted]))
        # One that leaves goes on being a peer until it has ended: what it got meanwhile must be known.
        leaving, self.routers = self.routers[wanted:], self.routers[:wanted]
        await self._stop_routers(leaving)
        self._publish()

    def _new_router(self, index: int) -> Router:
        listen = further_listen(self.listen, index) if index else self.listen
        return Router(index, listen, self._folder)

    async def _start_routers(self, routers: list[Router]) -> None:
        for router in routers:
            router.keeper = self._keep(router.name, router.program)
        try:
            await asyncio.gather(*(router.keeper.get_ready() for router in routers))
        except BaseException:
            await self._stop((router.keeper for router in routers), STOP_GRACE_S)
            raise
        for router in routers:
            self._say(
                f"{router.name}: ready at {router.url} (process {router.keeper.pid}, "
                f"admin {router.admin_url})"
            )

    async def _follow(self, router: Router) -> None:
        """Wait until a router follows its new configuration."""
        names = frozenset(self.replicas)
        if not await self._probes.routes(router.admin_url, names, ROUTING_LIMIT_S):
            self._say(f"{router.name}: not all of {', '.join(sorted(names))} are in rotation yet")
        state = await self._probes.state(router.admin_url)
        for fault in state.config_faults if state is not None else ():
            self._say(f"{router.name}: keeps its last configuration: {fault}")

    async def _stop_routers(self, routers: list[Router]) -> None:
        drain_s = self._config.drain_timeout_s if self._config else 0.0
        await self._stop((router.keeper for router in routers), drain_s + ROUTER_SLACK_S)

    def _publish(self) -> None:
        if self._config is not None:
            for router in self.routers:
                router.publish(self._config, self.routers)

    def _keep(self, name: str, make: Callable[[], Program]) -> Keeper:
        def make_and_publish() -> Program:
            program = make()
            self._republish()
            return program

        keeper = Keeper(
            name,
            make_and_publish,
            launcher=self._launcher,
            probe=self._probes.status,
            say=self._say,
        )
        self._keepers.add(keeper)
        return keeper

    def _republish(self) -> None:
        """Tell routers where replicas are now: one that starts again may have other ports."""
        if self._config is not None:
            replicas = sorted(
                (replica.config() for replica in self.replicas.values()), key=lambda r: r.name
            )
            self._config = replace(self._config, replicas=tuple(replicas))
            self._publish()


@asynccontextmanager
async def running_fleet(
    manifest: Manifest,
    *,
    listen: ListenConfig,
    state_root: Path,
    say: Say,
    engines: Engines = Engines(),  # noqa: B008  (frozen)
) -> AsyncIterator[Fleet]:
    """A fleet that runs as `manifest` says, and is gone afterwards; raises `FleetError`.

    What a killed run of the same service left behind is found, named and ended first.
    """
    metadata = manifest.service.metadata
    folder = StateFolder.open(state_root, f"{metadata.namespace}.{metadata.name}")
    try:
        await asyncio.to_thread(_clean_up, folder, say)
        async with Probes.open() as probes:
            fleet = Fleet(
                folder=folder,
                probes=probes,
                listen=ports.claim(listen),
                engines=engines,
                say=say,
            )
            try:
                await fleet.apply(manifest)
                yield fleet
            finally:
                await fleet.stop()
    finally:
        folder.close()


def _clean_up(folder: StateFolder, say: Say) -> None:
    record = folder.read()
    if record is None:
        return
    found = leftovers(record)
    if found:
        names = ", ".join(f"{process.name} (process {process.pid})" for process, _ in found)
        say(f"an earlier run was killed and left {names}; ending them")
        end((process for _, process in found), STOP_GRACE_S)
    else:
        say("an earlier run was killed; none of its processes is left")
    folder.forget()
