"""A fleet of local processes: the replicas and routers of a manifest.

A change never interrupts requests. New replicas are ready before the router sends them requests. The router has
removed old replicas before they are asked to end, because a replica that drains still accepts requests. If a new
replica does not start, the running fleet stays as it was.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
from evenkeel_contract.gateway import gateway_config
from evenkeel_contract.pools import configs_of
from evenkeel_contract.render import router_config
from evenkeel_contract.routerconfig import AtZero, ListenConfig, ReplicaConfig, RouterConfig
from evenkeel_contract.spec.parts import Runtime

from evenkeel_cli.manifest import Manifest
from evenkeel_cli.up import ports
from evenkeel_cli.up.capacity import check_memory
from evenkeel_cli.up.engines import Engines, real
from evenkeel_cli.up.errors import Superseded
from evenkeel_cli.up.launcher import Launcher, Program
from evenkeel_cli.up.probes import Probes
from evenkeel_cli.up.process_supervisor import ProcessSupervisor, Report
from evenkeel_cli.up.replicas import (
    REPLICA_GRACE_S,
    ReplicaAddress,
    ReplicaCommand,
    changes_to,
    simulated,
)
from evenkeel_cli.up.routers import (
    LocalRouter,
    count_of,
    further_listen,
    runbooks_of_clone,
    state_of,
)
from evenkeel_cli.up.state import StateFolder, end, leftovers

HOST: Final = "127.0.0.1"
ROUTING_LIMIT_S: Final = 10.0  # for a router to read its configuration and probe new replicas
STOP_GRACE_S: Final = 10.0  # for replicas once the router has ended, and its clients are gone
STARTS_AT_ONCE: Final = max(4, 2 * (os.cpu_count() or 1))
"""How many replicas start at the same time: more of them would share the processors and miss their start limit."""
ROUTER_SLACK_S: Final = 5.0  # on top of the router's own drain


class LocalReplica:
    """One replica: its command, its ports, its supervisor."""

    def __init__(self, name: str, command: ReplicaCommand, service: str) -> None:
        self.name = name
        self.service = service
        self.command = command
        self.ports = [ports.free_port(HOST) for _ in range(4)]
        self.supervisor: ProcessSupervisor

    def program(self) -> Program:
        """The program to run. Ports stay the same over restarts unless another process took them."""
        self.ports = [
            port if ports.is_free(HOST, port) else ports.free_port(HOST) for port in self.ports
        ]
        return self.command.at(ReplicaAddress(self.name, HOST, *self.ports))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.ports[0]}"

    def config(self) -> ReplicaConfig:
        """The replica's entry in the router's configuration."""
        reports, kv_events, kv_replay = (f"tcp://{HOST}:{port}" for port in self.ports[1:])
        return ReplicaConfig(
            name=self.name, url=self.url, reports=reports, kv_events=kv_events, kv_replay=kv_replay
        )


class LocalFleet:
    """The running fleet; made by `running_fleet`. One change at a time."""

    def __init__(
        self,
        *,
        folder: StateFolder,
        probes: Probes,
        listen: ListenConfig,
        engines: Engines,
        report: Report,
    ) -> None:
        self.listen = listen
        self.replicas: dict[str, LocalReplica] = {}
        self.routers: list[LocalRouter] = []
        self._folder = folder
        self._probes = probes
        self._engines = engines
        self._report = report
        self._launcher = Launcher(folder)
        self._supervisors: set[ProcessSupervisor] = set()
        """Supervisors of every process, including those that start or end at the moment."""
        self._config: RouterConfig | None = None
        self._reported_commands: dict[str, ReplicaCommand] = {}

    async def apply(self, manifest: Manifest, *, superseded: asyncio.Event | None = None) -> None:
        """Change the fleet to `manifest`; raises `FleetError`, and then the fleet stays as it was.

        When `superseded` is set before the new replicas are ready, they are stopped, and it raises `Superseded`.
        """
        # 1. Refuse more processes than fit, before the first of them starts.
        each = [(one, await self._command(one)) for one in manifest.each()]
        for one, command in each:
            self._check_memory(one, command, routers=count_of(manifest) - len(self.routers))
        # 2. Start new replicas and wait until all are ready.
        new: list[LocalReplica] = []
        kept: set[str] = set()
        for one, command in each:
            service = one.service.metadata.name
            own = {r.name: r.command for r in self.replicas.values() if r.service == service}
            changes = changes_to(
                own,
                command=command,
                count=one.service.spec.initial_replicas,
                prefix="" if manifest.gateway is None else f"{service}-",
            )
            new += [LocalReplica(name, command, service) for name in changes.start]
            kept |= own.keys() - set(changes.stop)
        await self._start(new, superseded or asyncio.Event())
        # 3. Add the new replicas to the router and remove the old ones. From here on the change is completed.
        old = [self.replicas.pop(name) for name in [*self.replicas] if name not in kept]
        self.replicas.update((replica.name, replica) for replica in new)
        await self._route(manifest)
        configs = () if self._config is None else configs_of(self._config)
        if any(config.at_zero is AtZero.REFUSE for config in configs):
            self._report(
                "no replica runs because spec.engine.replicas is 0; requests get 503 at once, and "
                "only an edit of the file starts a replica"
            )
        # 4. Stop the old replicas once they have finished their requests.
        await self._stop((replica.supervisor for replica in old), REPLICA_GRACE_S)
        for replica in old:
            self._report(f"{replica.name}: stopped; its requests are finished")

    async def stop(self) -> None:
        """Stop all processes in order: the router drains while the replicas still serve it."""
        await self._stop_routers(self.routers)
        await self._stop(self._supervisors, STOP_GRACE_S)
        self._launcher.close()
        self._folder.forget()

    def kill(self) -> None:
        """Kill all processes at once; `stop` must still be awaited."""
        for supervisor in self._supervisors:
            supervisor.kill()

    async def _stop(self, supervisors: Iterable[ProcessSupervisor], grace_s: float) -> None:
        stopping = list(supervisors)
        await asyncio.gather(*(supervisor.stop(grace_s) for supervisor in stopping))
        self._supervisors.difference_update(stopping)

    def _check_memory(self, manifest: Manifest, command: ReplicaCommand, *, routers: int) -> None:
        spec, service = manifest.service.spec, manifest.service.metadata.name
        fitting = sum(
            replica.command == command and replica.service == service
            for replica in self.replicas.values()
        )
        kept = min(fitting, spec.initial_replicas)
        scaled = spec.autoscaling is not None
        check_memory(
            field="spec.autoscaling.minReplicas" if scaled else "spec.engine.replicas",
            kept=kept,
            started=spec.initial_replicas - kept,
            replica_bytes=command.memory_bytes,
            routers_started=max(0, routers),
            available_bytes=psutil.virtual_memory().available,
        )

    async def _command(self, manifest: Manifest) -> ReplicaCommand:
        if manifest.service.spec.engine.runtime is Runtime.SIMULATOR:
            return simulated(manifest.service)
        found = await asyncio.to_thread(real, manifest, self._engines)
        service = manifest.service.metadata.name
        if found != self._reported_commands.get(service):
            self._report(found.summary())
            self._reported_commands[service] = found
        return found

    async def _start(self, replicas: list[LocalReplica], superseded: asyncio.Event) -> None:
        """Start replicas and wait until all are ready; after a failure or a newer edit none of them runs."""
        begun: list[ProcessSupervisor] = []
        slots = asyncio.Semaphore(STARTS_AT_ONCE)

        async def start(replica: LocalReplica) -> None:
            async with slots:
                replica.supervisor = self._supervise(replica.name, replica.program)
                begun.append(replica.supervisor)
                await replica.supervisor.get_ready()
                pid = replica.supervisor.pid
                self._report(f"{replica.name}: ready at {replica.url} (process {pid})")

        starting = asyncio.create_task(_all(start(replica) for replica in replicas))
        newer = asyncio.create_task(superseded.wait())
        try:
            await asyncio.wait((starting, newer), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                raise Superseded("the file changed again before the new replicas were ready")
            await starting
        except BaseException:  # a failure, a newer edit, or Ctrl-C
            starting.cancel()
            await asyncio.wait([starting])
            await self._stop(begun, STOP_GRACE_S)
            raise
        finally:
            newer.cancel()

    async def _route(self, manifest: Manifest) -> None:
        self._config = self._router_config(manifest)
        running, wanted = list(self.routers), count_of(manifest)
        new = [self._new_router(index) for index in range(len(running), wanted)]
        self.routers += new
        self._publish()  # before the start, so that no new router lacks its peers
        try:
            await self._start_routers(new)
        except BaseException:
            self.routers = running
            self._publish()
            raise
        await asyncio.gather(*(self._until_applied(router) for router in running[:wanted]))
        # A removed router stays a peer until it has ended: the others need its accounts of the last requests.
        removed, self.routers = self.routers[wanted:], self.routers[:wanted]
        await self._stop_routers(removed)
        self._publish()

    def _router_config(self, manifest: Manifest) -> RouterConfig:
        state = state_of(manifest, self._folder)
        configs = {
            one.service.metadata.name: router_config(
                one.service,
                tenants=manifest.tenants,
                key_hashes=manifest.key_hashes,
                replicas=self._replicas_of(one.service.metadata.name),
                listen=self.listen,
                state=state,
                credentials=one.credentials,
                cells=one.cells,
            )
            for one in manifest.each()
        }
        runbooks = runbooks_of_clone()
        if manifest.gateway is None:
            return replace(configs[manifest.service.metadata.name], runbooks=runbooks)
        config = gateway_config(
            manifest.gateway,
            manifest.members,
            configs=configs,
            tenants=manifest.tenants,
            key_hashes=manifest.key_hashes,
            listen=self.listen,
            state=state,
            credentials=manifest.credentials,
        )
        return replace(config, runbooks=runbooks)

    def _replicas_of(self, service: str) -> tuple[ReplicaConfig, ...]:
        found = [one.config() for one in self.replicas.values() if one.service == service]
        return tuple(sorted(found, key=lambda replica: replica.name))

    def _new_router(self, index: int) -> LocalRouter:
        listen = further_listen(self.listen, index) if index else self.listen
        return LocalRouter(index, listen, self._folder)

    async def _start_routers(self, routers: list[LocalRouter]) -> None:
        for router in routers:
            router.supervisor = self._supervise(router.name, router.program)
        try:
            await asyncio.gather(*(router.supervisor.get_ready() for router in routers))
        except BaseException:
            await self._stop((router.supervisor for router in routers), STOP_GRACE_S)
            raise
        for router in routers:
            self._report(
                f"{router.name}: ready at {router.url} (process {router.supervisor.pid}, "
                f"admin {router.admin_url})"
            )

    async def _until_applied(self, router: LocalRouter) -> None:
        """Wait until a router uses its new configuration."""
        names = frozenset(self.replicas)
        if not await self._probes.routes(router.admin_url, names, ROUTING_LIMIT_S):
            self._report(f"{router.name}: not all of {', '.join(sorted(names))} take requests yet")
        state = await self._probes.state(router.admin_url)
        for fault in state.config_faults if state is not None else ():
            self._report(f"{router.name}: still uses its previous configuration: {fault}")

    async def _stop_routers(self, routers: list[LocalRouter]) -> None:
        drain_s = self._config.drain_timeout_s if self._config else 0.0
        await self._stop((router.supervisor for router in routers), drain_s + ROUTER_SLACK_S)

    def _publish(self) -> None:
        if self._config is not None:
            for router in self.routers:
                router.publish(self._config, self.routers)

    def _supervise(self, name: str, make: Callable[[], Program]) -> ProcessSupervisor:
        def make_and_publish() -> Program:
            program = make()
            self._republish()
            return program

        supervisor = ProcessSupervisor(
            name,
            make_and_publish,
            launcher=self._launcher,
            probe=self._probes.status,
            report=self._report,
        )
        self._supervisors.add(supervisor)
        return supervisor

    def _republish(self) -> None:
        """Write the addresses of the replicas to all routers: a restarted replica may have other ports."""
        if self._config is None:
            return
        config = self._config
        if config.pools:
            pools = (replace(one, replicas=self._replicas_of(one.service)) for one in config.pools)
            self._config = replace(config, pools=tuple(pools))
        else:
            self._config = replace(config, replicas=self._replicas_of(config.service))
        self._publish()


@asynccontextmanager
async def running_fleet(
    manifest: Manifest,
    *,
    listen: ListenConfig,
    state_root: Path,
    report: Report,
    engines: Engines = Engines(),  # noqa: B008  (frozen)
) -> AsyncIterator[LocalFleet]:
    """The running fleet of `manifest`, stopped afterwards; raises `FleetError`.

    It first ends the processes that a killed run of the same service left behind, and reports them.
    """
    folder = StateFolder.open(state_root, ".".join(manifest.identity))
    try:
        await asyncio.to_thread(_clean_up, folder, report)
        async with Probes.open() as probes:
            fleet = LocalFleet(
                folder=folder,
                probes=probes,
                listen=ports.claim(listen),
                engines=engines,
                report=report,
            )
            try:
                await fleet.apply(manifest)
                yield fleet
            finally:
                await fleet.stop()
    finally:
        folder.close()


async def _all(starts: Iterable[Coroutine[None, None, None]]) -> None:
    """Wait for all; after the first failure, or when it is cancelled, cancel the others and wait for their end."""
    tasks = [asyncio.create_task(start) for start in starts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _clean_up(folder: StateFolder, report: Report) -> None:
    record = folder.read()
    if record is None:
        return
    found = leftovers(record)
    if found:
        names = ", ".join(f"{process.name} (process {process.pid})" for process, _ in found)
        report(f"an earlier run was killed and left {names}; ending them")
        end((process for _, process in found), STOP_GRACE_S)
    else:
        report("an earlier run was killed; none of its processes is left")
    folder.forget()
