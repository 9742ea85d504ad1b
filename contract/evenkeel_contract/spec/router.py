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
    """How prompts are matched with the replicas that hold their prefixes."""

    mode: PrefixMode = PrefixMode.TEXT
    """Text: blocks of bytes, corrected by what replicas report. Tokens: exactly as the engine caches."""
    text_block_bytes: Annotated[int, Range(16, 65536)] = 256
    """Length of a block in mode Text: shorter finds more, longer costs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """The volume of store File."""

    size: Quantity = Quantity.from_plain("1Gi")
    """How large the volume is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisState:
    """The server of store Redis."""

    url_secret_ref: SecretKeyRef
    """A Secret's entry with an address like redis://:password@host:6379/0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where the ledger outlives a router."""

    store: StateStore = StateStore.PEERS
    """File needs exactly one router."""
    file: FileState | None = None
    """With store File only."""
    redis: RedisState | None = None
    """With store Redis, which needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLimits:
    """Bounds of one request and of one client."""

    max_body_size: Quantity = Quantity.from_plain("16Mi")
    """A larger request is refused (413)."""
    queue_timeout: Duration = Duration.from_plain("120s")
    """How long a request may wait while no replica is routable (503)."""
    first_token_timeout: Duration = Duration.from_plain("120s")
    """How long a replica may take until its first byte (504)."""
    activation_timeout: Duration = Duration.from_plain("600s")
    """How long a request may wait for a service that was scaled to zero (503)."""
    max_concurrent_per_client: Count = 0
    """Requests of one client in flight; more are refused (429). 0: no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The routers in front of the replicas."""

    replicas: Positive | None = None
    """How many; absent: 2, or 1 where the state's store is File."""
    template: PodTemplate = field(default_factory=PodTemplate)
    """What to lay over the generated pods."""
    prefix: Prefix = field(default_factory=Prefix)
    """How prompts are matched with replicas."""
    state: State = field(default_factory=State)
    """Where the ledger outlives a router."""
    limits: RouterLimits = field(default_factory=RouterLimits)
    """Bounds of one request and of one client."""

    @property
    def count(self) -> int:
        """How many routers there shall be."""
        return self.replicas or (1 if self.state.store is StateStore.FILE else 2)
