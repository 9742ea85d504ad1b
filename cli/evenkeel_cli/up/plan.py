"""What a service means as processes, and what has to change from one version of it to the next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count as naturals
from typing import Final

from evenkeel_contract.spec import FairInferenceService

Arguments = tuple[str, ...]

REPLICA_MODULE: Final = "evenkeel_simulator.server"
ROUTER_MODULE: Final = "evenkeel_router"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """Replicas by name: those that stay as they are, those to start, those to end afterwards."""

    keep: tuple[str, ...]
    start: tuple[str, ...]
    retire: tuple[str, ...]


def replica_arguments(service: FairInferenceService) -> Arguments:
    """The command line of a replica, but for its ports. Equal arguments, equal replicas."""
    scheduling = service.spec.scheduling
    return (
        f"--model={service.spec.model.name}",
        f"--replica-policy={scheduling.replica_policy.value}",
        f"--client-quantum={scheduling.client_quantum}",
        f"--input-token-weight={scheduling.input_token_weight}",
        f"--output-token-weight={scheduling.output_token_weight}",
        f"--rejoin={scheduling.rejoin.value}",
        *service.spec.engine.args,
    )


def plan_replicas(
    current: Mapping[str, Arguments], *, arguments: Arguments, count: int
) -> ReplicaPlan:
    """How to get from `current` to `count` replicas with `arguments`.

    What fits stays, oldest first; what does not is replaced, never changed in place, so that a
    replica's work is finished by the process that began it.
    """
    fitting = sorted((name for name in current if current[name] == arguments), key=_number)
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
