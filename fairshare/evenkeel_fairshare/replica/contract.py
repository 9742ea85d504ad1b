"""The contract between an engine and a replica policy.

The policy owns the waiting queue; the engine owns the batch, the cache and the memory. The order of calls is arrive →
admissions → progress → leave. A pass of admissions is a conversation: the policy yields the request it wants next, the
engine answers whether it fitted. So the policy never computes memory and the engine never orders requests.

A pass is a generator. So one implementation serves an engine that asks whether a request may enter, and an engine that asks
for the next request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class Arrival(Enum):
    """The decision of a policy about a new request."""

    QUEUED = "queued"
    REJECTED = "rejected"  # RPM only: the engine must fail the request at once


class AdmissionResult(Enum):
    """The engine's answer to a request that a pass proposed."""

    ADMITTED = "admitted"  # it is in the batch; `Request.extend_tokens` is set
    NO_ROOM = "no_room"  # it does not fit now; it stays queued
    LATER = (
        "later"  # another request computes its prefix now; it stays queued, and others may enter
    )
    CLIENT_LATER = (
        "client_later"  # no request of its client may enter in this pass (R13); others may
    )
    HELD = "held"  # the engine can begin it only after another prompt; it stays queued, and others need not wait for it
    CLIENT_HELD = "client_held"  # as `HELD`, for all requests of its client: a prompt of the same client is not complete
    NO_SLOT = (
        "no_slot"  # the batch uses all slots for adapters; it stays queued, and others may enter
    )


@dataclass(slots=True, eq=False)
class Request:
    """One request as a replica policy sees it.

    Two requests are equal only if they are the same object. Engines may add their own state in a subclass.
    """

    id: str
    client: str
    """The whole identity, `namespace/tenant/client`: unique over all tenants."""
    tenant: str
    """`namespace/tenant`. Flat algorithms ignore it."""
    arrival_s: float
    input_tokens: int
    max_output_tokens: int
    """The most output that the request may produce. No fair policy knows the true length."""
    client_weight: float = 1.0
    tenant_weight: float = 1.0
    seed: float = 0.0
    """The first deficit of a client that is new to the policy, weighted tokens (R5). A debt is negative."""
    tenant_seed: float = 0.0
    """The first deficit of a tenant that is new to the policy, weighted tokens (R5)."""
    charge_input: bool = True
    """Whether input is charged. False for a retry after a failure of the fleet: its input was charged elsewhere (R11)."""
    paid_output_tokens: int = 0
    """Output tokens of such a retry that were charged elsewhere too: neither engine nor accounts charge them again."""
    expected_output_tokens: int | None = None
    """True length of the output, in experiments with oracles only; None: unknown."""

    # The engine sets these.
    matched_tokens: int = 0
    """Input tokens found in the cache at the last match; current before every pass if `matches_prefix`. The engine reports a
    change while the request waits (`ReplicaPolicy.rematched`)."""
    extend_tokens: int = 0
    """Input tokens that the engine computes; set at admission, at least 1."""
    load_tokens: int = 0
    """Tokens that the engine could compute while it loads the request's adapter; 0 if no load is needed. Set at admission, and
    charged as input: the client whose request causes the load pays for it (R10)."""
    output_tokens: int = 0
    """Output tokens so far; the engine sets them before it reports `progress`."""
    token_s: float = 0.0
    """Time of the newest output token; current when the accounts settle."""
    booked_tokens: int = 0
    """Output tokens that the accounts include."""
    booked_s: float = 0.0
    """Time of the newest of them. The engine sets it at the first output token."""

    def first_token(self, now_s: float) -> None:
        """The engine calls this when the request's first output token was produced."""
        self.token_s = self.booked_s = now_s

    @property
    def input_work(self) -> int:
        """Tokens that an admission is charged for as input."""
        return self.extend_tokens + self.load_tokens

    @property
    def uncached_tokens(self) -> int:
        """Input tokens that are not cached, at least 1: an engine computes the last one again."""
        return max(1, self.input_tokens - self.matched_tokens)

    def due_tokens(self, tokens: int) -> int:
        """The number of its last `tokens` output tokens that are charged here (R11)."""
        return min(tokens, self.output_tokens - self.paid_output_tokens)

    def __post_init__(self) -> None:
        """Raises `ValueError` if a weight is not positive."""
        if not (self.client_weight > 0 and self.tenant_weight > 0):
            raise ValueError(
                f"request {self.id!r}: client_weight {self.client_weight} and "
                f"tenant_weight {self.tenant_weight} must be positive"
            )


@dataclass(frozen=True, slots=True)
class ClientDeficits:
    """Deficits and queue of one client at a policy, for reports and `evenkeel top`. Weighted tokens."""

    deficit: float
    """DLPM: q_i. VTC: minus the counter. 0 for policies without accounts."""
    tenant_deficit: float
    waiting: int
    seed: float = 0.0
    """The first deficit here (R5)."""
    tenant_seed: float = 0.0


class ReplicaPolicy(ABC):
    """Orders one replica's waiting queue. Deterministic: the same calls give the same passes, so every
    tensor-parallel rank may run its own copy."""

    name: ClassVar[str]
    matches_prefix: ClassVar[bool]
    """Whether the engine must refresh `Request.matched_tokens` of all of `waiting()` before a pass."""
    divides_time: ClassVar[bool] = False
    """Whether the engine divides its time among clients (R13). A policy without accounts leaves prefill first."""

    @property
    def quantum(self) -> float:
        """Q^u in force, in weighted tokens, for reports. 0: the policy gives no quanta that a router needs to know."""
        return 0.0

    @abstractmethod
    def arrive(self, request: Request, now_s: float) -> Arrival:
        """Take a new request into the waiting queue, or reject it."""

    def admit_alone(self, request: Request, now_s: float) -> bool:
        """`arrive`, and a pass that admits the request, in one call: no other request waits, and `extend_tokens` is set.

        False: nothing was done, and the caller makes the two calls.
        """
        return False

    def rematched(self, request: Request) -> None:
        """`matched_tokens` changed. Before the next pass, for each such request that waits; others are ignored."""

    @abstractmethod
    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        """One admission pass (one "batching step" of the papers).

        Yields the next request; the engine must send an `AdmissionResult` for each. An admitted request leaves the
        queue and its input is charged before the next one is chosen. Ends when no other request may or can
        enter. The engine may close the generator to abandon a pass. During a pass it makes no other call that
        changes the policy.
        """

    @abstractmethod
    def progress(self, request: Request, tokens: int) -> None:
        """A running request produced `tokens` more output tokens (>= 1): charge each of them once."""

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        """`progress` for each of `requests`. Policies override it if one charge for many is cheaper."""
        for request in requests:
            self.progress(request, tokens)

    def corrected(self, request: Request, *, extend_tokens: int, output_tokens: int) -> None:
        """A running request computed so many tokens, and not as many as it was charged for (R12). `output_tokens`: all of them.

        Only for callers that predict what an engine computes, such as a router. Policies whose charge does not depend on the
        cache charge the output tokens that are new.
        """
        new = output_tokens - request.output_tokens
        if new > 0:
            request.output_tokens = output_tokens
            due = request.due_tokens(new)
            if due > 0:
                self.progress(request, due)

    def served_elsewhere(self, client: str, tenant: str, service: float) -> None:
        """Another queue of the same engine served a client so much, weighted tokens: charge it if it has requests here (R12).

        Only for routers that share an engine. Policies without accounts ignore it.
        """

    @abstractmethod
    def requeue(self, request: Request, now_s: float) -> None:
        """A running request was retracted and waits again; tokens computed again are charged again (R11)."""

    @abstractmethod
    def leave(self, request: Request, now_s: float) -> None:
        """The request has ended: finished, or aborted while running or waiting."""

    @abstractmethod
    def waiting(self) -> Iterable[Request]:
        """Every queued request, in any order."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of waiting requests."""

    def preempt(self, running: Sequence[Request], now_s: float) -> Sequence[Request]:
        """Running requests to retract before the next pass. Most policies never preempt."""
        return ()

    def clients(self) -> Mapping[str, ClientDeficits]:
        """State by client, for reports. A policy without accounts still reports waiting clients, because nothing
        else shows that they starve."""
        counts = Counter(request.client for request in self.waiting())
        return {client: ClientDeficits(0.0, 0.0, count) for client, count in counts.items()}

    def news(self) -> Mapping[str, ClientDeficits] | None:
        """What changed in `clients` since the last call, all of it at first; zeros for a client that is not there any more. Of a
        tenant whose deficit changed there is one client at least. None: the policy keeps no account of changes."""
        return None


class UnchargedPolicy(ReplicaPolicy):
    """A policy without accounts: one queue in order of arrival, and output is charged to no client. Charging is abstract elsewhere,
    so that no fair policy omits it."""

    def __init__(self) -> None:
        # An OrderedDict, because repeated removal of the first item of a long dict is quadratic.
        self._queue: OrderedDict[Request, None] = OrderedDict()

    def arrive(self, request: Request, now_s: float) -> Arrival:
        self._queue[request] = None
        return Arrival.QUEUED

    def requeue(self, request: Request, now_s: float) -> None:
        self._queue[request] = None
        self._queue.move_to_end(request, last=False)  # it arrived before all that wait

    def leave(self, request: Request, now_s: float) -> None:
        self._queue.pop(request, None)

    def waiting(self) -> Collection[Request]:
        return self._queue.keys()

    def __len__(self) -> int:
        return len(self._queue)

    def progress(self, request: Request, tokens: int) -> None:
        pass

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        pass
