"""The contract between an engine and a replica policy.

The policy owns the waiting queue; the engine owns the batch, the cache and the memory. The order of calls is arrive →
admissions → progress → leave. A pass of admissions is a conversation: the policy yields the request it wants next, the
engine answers whether it fitted. So the policy never computes memory and the engine never orders requests.

A pass is a generator. One implementation therefore serves an engine that asks ("may this one in?") and an engine that
is driven ("give me the next one").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class Arrival(Enum):
    """What a policy does with a new request."""

    QUEUED = "queued"
    REJECTED = "rejected"  # RPM only: the engine must fail the request at once


class Outcome(Enum):
    """What the engine answers to a request that a pass proposed."""

    ADMITTED = "admitted"  # it is in the batch; `Request.extend_tokens` is set
    NO_ROOM = "no_room"  # it does not fit now; it stays queued
    LATER = (
        "later"  # its prefix is being computed for another; it stays queued, and others may enter
    )


@dataclass(slots=True, eq=False)
class Request:
    """One request as a replica policy sees it.

    Identity is by object: two requests are never equal. Engines may subclass it to hang their own state
    on it. All token figures are counts of tokens.
    """

    id: str
    client: str
    """The whole identity, `namespace/tenant/client`: unique over all tenants."""
    tenant: str
    """`namespace/tenant`. Flat algorithms ignore it."""
    arrival_s: float
    input_tokens: int
    max_output_tokens: int
    """What the request may produce at most; the true length is unknown to every fair policy."""
    client_weight: float = 1.0
    tenant_weight: float = 1.0
    seed: float = 0.0
    """Weighted tokens. The deficit (negative: debt) that a client starts from if the policy never saw it (R5)."""
    tenant_seed: float = 0.0
    """The same for the tenant."""
    charge_input: bool = True
    """False for a retry that the fleet's own failure caused: its input was charged elsewhere (R11)."""
    paid_output_tokens: int = 0
    """Output tokens of such a retry that were charged elsewhere too: neither engine nor accounts charge them again."""
    expected_output_tokens: int | None = None
    """For oracles and engines with forced lengths only."""

    # Kept by the engine.
    matched_tokens: int = 0
    """Input tokens found in the cache when last matched; current before every pass if `matches_prefix`."""
    extend_tokens: int = 0
    """Input tokens that had to be computed; set by the engine when it admits, at least 1."""
    output_tokens: int = 0
    """Output tokens produced so far; advanced by the engine before it reports `progress`."""
    booked_tokens: int = 0
    """Output tokens that the accounts include."""

    def due_tokens(self, tokens: int) -> int:
        """How many of its last `tokens` output tokens are charged here (R11)."""
        return min(tokens, self.output_tokens - self.paid_output_tokens)

    def __post_init__(self) -> None:
        """Raises `ValueError` on a weight that no share can be computed from."""
        if not (self.client_weight > 0 and self.tenant_weight > 0):
            raise ValueError(
                f"request {self.id!r}: client_weight {self.client_weight} and "
                f"tenant_weight {self.tenant_weight} must be positive"
            )


@dataclass(frozen=True, slots=True)
class ClientState:
    """A policy's account of one client, for reports and `evenkeel top`. Weighted tokens."""

    deficit: float
    """DLPM: q_i. VTC: minus the counter. 0 where a policy keeps none."""
    tenant_deficit: float
    waiting: int
    seed: float = 0.0
    """What the deficit started from here (R5)."""
    tenant_seed: float = 0.0


class ReplicaPolicy(ABC):
    """Orders one replica's waiting queue. Deterministic: the same calls give the same passes, so every
    tensor-parallel rank may run its own copy."""

    name: ClassVar[str]
    matches_prefix: ClassVar[bool]
    """Whether the engine must refresh `Request.matched_tokens` of all of `waiting()` before a pass."""

    @abstractmethod
    def arrive(self, request: Request, now_s: float) -> Arrival:
        """Take a new request into the waiting queue, or reject it."""

    @abstractmethod
    def admissions(self, now_s: float) -> Generator[Request, Outcome, None]:
        """One admission pass (one "batching step" of the papers).

        Yields the request wanted next; must be sent an `Outcome` for each. An admitted request leaves the
        queue and its input is charged before the next one is chosen. Ends when no other request may or can
        enter. The engine may abandon a pass by closing the generator; until it does or the pass ends, it
        calls nothing else that changes the policy.
        """

    @abstractmethod
    def progress(self, request: Request, tokens: int) -> None:
        """A running request produced `tokens` further output tokens (>= 1) that are to be paid: charge them, once each."""

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        """`progress` for every one of `requests`; to be overridden where once for many is cheaper."""
        for request in requests:
            self.progress(request, tokens)

    @abstractmethod
    def requeue(self, request: Request, now_s: float) -> None:
        """A running request was retracted and waits again; what is computed again is charged again (R11)."""

    @abstractmethod
    def leave(self, request: Request, now_s: float) -> None:
        """The request is over: finished, or aborted while running or while waiting."""

    @abstractmethod
    def waiting(self) -> Iterable[Request]:
        """Every queued request, in no promised order."""

    @abstractmethod
    def __len__(self) -> int:
        """How many requests wait."""

    def preempt(self, running: Sequence[Request], now_s: float) -> Sequence[Request]:
        """Running requests to retract before the next pass. Most policies never preempt."""
        return ()

    def clients(self) -> Mapping[str, ClientState]:
        """State by client, for reports. A policy without accounts still reports the clients that wait, since nothing
        else shows that they are starved."""
        counts = Counter(request.client for request in self.waiting())
        return {client: ClientState(0.0, 0.0, count) for client, count in counts.items()}
