"""The router: `spec.router`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from evenkeel_contract.constraints import Range
from evenkeel_contract.quantities import Duration, Quantity
from evenkeel_contract.routerconfig import PrefixMode, StateStore
from evenkeel_contract.spec.common import Count, PodTemplate, Positive, SecretKeyRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """How the router matches prompts with the prefixes that replicas have cached."""

    mode: PrefixMode = PrefixMode.TEXT
    """What the router compares. Text compares blocks of bytes and corrects itself by the replicas' reports.
    Tokens compares the engine's own token blocks, which is exact."""
    text_block_bytes: Annotated[int, Range(16, 65536)] = 256
    """Length of a block in mode Text, in bytes. Shorter blocks find more matches, longer blocks use less memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """Volume of store File."""

    size: Quantity = Quantity.from_plain("1Gi")
    """Size of the volume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisState:
    """Server of store Redis."""

    url_secret_ref: SecretKeyRef
    """Secret entry with the server's address, such as `redis://:password@host:6379/0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where the ledger is kept when a router restarts."""

    store: StateStore = StateStore.PEERS
    """Place that keeps the ledger: the other routers (Peers), a volume (File) or a Redis server (Redis).
    File needs exactly one router."""
    file: FileState | None = None
    """Volume of store File. Set it with store File only."""
    redis: RedisState | None = None
    """Server of store Redis. Required with store Redis and refused with another store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLimits:
    """Limits of one request and of one client."""

    max_body_size: Quantity = Quantity.from_plain("16Mi")
    """Largest request body in bytes. The router refuses a larger one with status 413."""
    queue_timeout: Duration = Duration.from_plain("120s")
    """Longest wait of a request while no replica can take it. Then the router answers 503."""
    first_token_timeout: Duration = Duration.from_plain("120s")
    """Longest wait for a replica's first byte. Then the router answers 504."""
    activation_timeout: Duration = Duration.from_plain("600s")
    """Longest wait of a request for the first replica of a service at zero. Then the router answers 503."""
    max_concurrent_per_client: Count = 0
    """Most requests of one client in flight at each router. The router refuses more with status 429. 0 means no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The routers, which send requests to the replicas."""

    replicas: Positive | None = None
    """Number of routers. If not set, it is 1 with store File and 2 otherwise."""
    template: PodTemplate = field(default_factory=PodTemplate)
    """Changes to the generated router pods, applied by a strategic merge."""
    prefix: Prefix = field(default_factory=Prefix)
    """How the router matches prompts with cached prefixes."""
    state: State = field(default_factory=State)
    """Where the ledger is kept when a router restarts."""
    limits: RouterLimits = field(default_factory=RouterLimits)
    """Limits of one request and of one client."""

    @property
    def count(self) -> int:
        """The desired number of routers."""
        return self.replicas or (1 if self.state.store is StateStore.FILE else 2)
