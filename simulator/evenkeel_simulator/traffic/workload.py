"""The load of a fleet: programs of calls, and the clients that send them.

A program is a request with the requests that depend on it: its calls form a graph, and a call is sent when
those it comes `after` have ended, so a slow fleet gets them later (a closed loop). A trace is programs of
one call each.

A child's prompt may hold its parent's output although nothing has been generated yet. Lengths are forced, so the output is
known as a segment: its key and its number of tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from evenkeel_simulator.engine.cache import Segment


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a program. Token counts."""

    input_tokens: int
    output_tokens: int
    """Output tokens that it produces."""
    max_output_tokens: int
    """Most output tokens that the request allows."""
    prompt: tuple[Segment, ...] = ()
    """The part of the input that can be shared; see `EngineRequest.prompt`."""
    output_key: Hashable = None
    """Key of the output in the cache; only where `prompt` is all of the input."""
    after: tuple[int, ...] = ()
    """Indices in `Program.calls` of the calls that must end first; all smaller than its own."""

    @property
    def output(self) -> Segment:
        """The output as a segment of a child's prompt."""
        return Segment(self.output_key, self.output_tokens)


@dataclass(frozen=True, slots=True)
class Program:
    """Calls of one client that belong together."""

    id: str
    client: str
    arrival_s: float
    """Time at which the calls without predecessors are sent."""
    calls: tuple[Call, ...]
    adapter: str | None = None
    """Name of the LoRA adapter of all calls; None: the model without an adapter."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client and its weight."""

    name: str
    tenant: str
    """`namespace/tenant`; clients of one tenant share its weight."""
    client_weight: float = 1.0
    tenant_weight: float = 1.0

    @property
    def weight(self) -> float:
        """The client's weight in a flat fleet policy."""
        return self.client_weight * self.tenant_weight


@dataclass(frozen=True, slots=True)
class Workload:
    """Programs in the order of their arrivals. May be consumed only once if `programs` is an iterator."""

    name: str
    programs: Iterable[Program]
    clients: Mapping[str, Client] = field(default_factory=dict)
    """Clients that are not mentioned have the tenant of their name (`tenant_of`) and weigh 1."""
    size: int | None = None
    """Requests in all, for progress bars; None where it is not known beforehand."""
    duration_s: float = 0.0
    """Planned duration of arrivals; 0 if only the arrivals define it."""
    notes: tuple[str, ...] = ()
    """One sentence for each part of its source that was left out."""

    def client(self, name: str) -> Client:
        return self.clients.get(name) or Client(name, tenant_of(name))


def tenant_of(client: str) -> str:
    """The tenant of a client that is not declared: part of its name, or a common one."""
    return client.rsplit("/", 1)[0] if client.count("/") == 2 else "default/default"


def weighted(names: Iterable[str], weights: Mapping[str, float]) -> dict[str, Client]:
    """The clients that `weights` changes: it names clients or tenants (`namespace/tenant`). Raises `ValueError` for a name
    that is neither."""
    tenants = {name: tenant_of(name) for name in names}
    unknown = sorted(set(weights) - {*tenants, *tenants.values()})
    if unknown:
        raise ValueError(f"weights names {', '.join(unknown)}, which is no client and no tenant")
    return {
        name: Client(name, tenant, weights.get(name, 1.0), weights.get(tenant, 1.0))
        for name, tenant in tenants.items()
        if name in weights or tenant in weights
    }
