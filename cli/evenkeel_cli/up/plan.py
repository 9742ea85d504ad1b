"""What a service means as processes, and what has to change from one version of it to the next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count as naturals
from typing import Final, Protocol

from evenkeel_contract.enginecommand import simulator_flags
from evenkeel_contract.spec import FairInferenceService

from evenkeel_cli.up.launcher import Program

SIMULATOR_MODULE: Final = "evenkeel_simulator.server"
ROUTER_MODULE: Final = "evenkeel_router"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one replica is: what no other one shares."""

    name: str
    host: str
    http_port: int
    reports_port: int
    kv_events_port: int
    kv_replay_port: int

    @property
    def probe_url(self) -> str:
        """Answers 200 once the replica is ready."""
        return f"http://{self.host}:{self.http_port}/ready"

    @property
    def number(self) -> int:
        """Of `replica-3`: 3."""
        return _number(self.name)


class ReplicaCommand(Protocol):
    """What a replica runs. Equal commands, equal replicas: what they differ in is their `Place`."""

    def at(self, place: Place) -> Program: ...


@dataclass(frozen=True, slots=True)
class SimulatedReplica:
    """A replica of runtime Simulator."""

    arguments: tuple[str, ...]

    def at(self, place: Place) -> Program:
        """The process of one of them."""
        return Program(
            name=place.name,
            module=SIMULATOR_MODULE,
            arguments=(
                *self.arguments,
                f"--host={place.host}",
                f"--port={place.http_port}",
                f"--reports-port={place.reports_port}",
                f"--kv-events-port={place.kv_events_port}",
                f"--kv-replay-port={place.kv_replay_port}",
            ),
            probe_url=place.probe_url,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """Replicas by name: those that stay as they are, those to start, those to end afterwards."""

    keep: tuple[str, ...]
    start: tuple[str, ...]
    retire: tuple[str, ...]


def simulated(service: FairInferenceService) -> SimulatedReplica:
    """The replicas of a service with runtime Simulator."""
    return SimulatedReplica((*simulator_flags(service.spec), *service.spec.engine.args))


def plan_replicas(
    current: Mapping[str, ReplicaCommand], *, command: ReplicaCommand, count: int
) -> ReplicaPlan:
    """How to get from `current` to `count` replicas that run `command`.

    What fits stays, oldest first; what does not is replaced, never changed in place, so that a
    replica's work is finished by the process that began it.
    """
    fitting = sorted((name for name in current if current[name] == command), key=_number)
    keep = tuple(fitting[:count])
    start = tuple(_fresh_names(current, count - len(keep)))
    retire = tuple(name for name in current if name not in keep)
    return ReplicaPlan(keep=keep, start=start, retire=retire)


def _fresh_names(taken: Iterable[str], count: int) -> Iterator[str]:
    """`count` free names, lowest first."""
    used = set(taken)
    names = (f"replica-{number}" for number in naturals())
    free = (name for name in names if name not in used)
    return (name for name, _ in zip(free, range(count), strict=False))


def _number(name: str) -> int:
    return int(name.rsplit("-", 1)[-1])
