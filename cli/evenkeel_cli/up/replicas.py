"""The command of a replica, and which replicas to keep, start and stop when a file changes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count as naturals
from itertools import islice
from typing import Final, Protocol

from evenkeel_contract.render import adapter_flags, simulator_flags
from evenkeel_contract.spec.resources import FairInferenceService

from evenkeel_cli.up.capacity import SIMULATED_REPLICA_BYTES
from evenkeel_cli.up.launcher import Program

SIMULATOR_MODULE: Final = "evenkeel_simulator.server"
ROUTER_MODULE: Final = "evenkeel_router"
REPLICA_GRACE_S: Final = 60.0
"""Time that the streams of a removed replica may take to end."""


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """The name and the ports of one replica."""

    name: str
    host: str
    http_port: int
    reports_port: int
    kv_events_port: int
    kv_replay_port: int

    @property
    def probe_url(self) -> str:
        """URL that answers 200 once the replica is ready."""
        return f"http://{self.host}:{self.http_port}/ready"

    @property
    def health_url(self) -> str:
        """URL that answers 200 once an engine without `/ready` is ready."""
        return f"http://{self.host}:{self.http_port}/health"

    @property
    def number(self) -> int:
        """Number in the replica's name: 3 for `replica-3`."""
        return _number(self.name)


class ReplicaCommand(Protocol):
    """The program of a replica. Replicas with equal commands differ in their `ReplicaAddress` only."""

    @property
    def memory_bytes(self) -> int:
        """The memory that one replica needs."""
        ...

    def at(self, address: ReplicaAddress) -> Program: ...


@dataclass(frozen=True, slots=True)
class SimulatedReplica:
    """A replica of runtime Simulator."""

    arguments: tuple[str, ...]

    @property
    def memory_bytes(self) -> int:
        return SIMULATED_REPLICA_BYTES

    def at(self, address: ReplicaAddress) -> Program:
        """The program of one replica."""
        return Program(
            name=address.name,
            module=SIMULATOR_MODULE,
            arguments=(
                *self.arguments,
                f"--host={address.host}",
                f"--port={address.http_port}",
                f"--reports-port={address.reports_port}",
                f"--kv-events-port={address.kv_events_port}",
                f"--kv-replay-port={address.kv_replay_port}",
            ),
            probe_url=address.probe_url,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChanges:
    """Replicas by name: those to start, and those to stop once the new ones are ready."""

    start: tuple[str, ...]
    stop: tuple[str, ...]


def simulated(service: FairInferenceService) -> SimulatedReplica:
    """The replicas of a service with runtime Simulator."""
    model = service.spec.model
    adapters = adapter_flags(model, paths={one.name: one.source for one in model.adapters})
    return SimulatedReplica((*simulator_flags(service.spec), *adapters, *service.spec.engine.args))


def changes_to(
    current: Mapping[str, ReplicaCommand], *, command: ReplicaCommand, count: int, prefix: str = ""
) -> ReplicaChanges:
    """What leads from `current` to `count` replicas that run `command`. `prefix`: of the names of new ones.

    A replica whose command differs is replaced by a new one, so that its requests end in the process
    that began them. Of replicas with this command, the oldest stay.
    """
    fitting = sorted((name for name in current if current[name] == command), key=_number)
    keep = fitting[:count]
    start = tuple(_fresh_names(current, count - len(keep), prefix))
    stop = tuple(name for name in current if name not in keep)
    return ReplicaChanges(start=start, stop=stop)


def _fresh_names(taken: Iterable[str], count: int, prefix: str) -> Iterator[str]:
    """`count` free names, lowest first."""
    used = set(taken)
    names = (f"{prefix}replica-{number}" for number in naturals())
    return islice((name for name in names if name not in used), count)


def _number(name: str) -> int:
    return int(name.rsplit("-", 1)[-1])
