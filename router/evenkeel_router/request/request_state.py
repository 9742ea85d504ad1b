"""One request on its way: what the steps find out about it.

Place in the flow: made when a request's head is there, read by accounting, metrics and the request log at
its end. The one mutable record of the hot path, so that the steps need not hand a dozen values to each other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from evenkeel_fairshare.fleet.contract import EMPTY, ReplicaSet, Usage

from evenkeel_router.api.charged import UNPAID
from evenkeel_router.api.identity import Client
from evenkeel_router.api.inference import Inference
from evenkeel_router.api.outcomes import Outcome
from evenkeel_router.fleet.selection import Plan, Ticket
from evenkeel_router.ledger.accounting import Booking
from evenkeel_router.prefix.tokenised import Tokenised
from evenkeel_router.request.totals import ClientTotals

if TYPE_CHECKING:
    from evenkeel_router.request.relocation import Move
    from evenkeel_router.transport.upstream import Exchange


class RequestState:
    """A request from its head to its end."""

    __slots__ = (
        "activation_s", "attempts", "booking", "client", "complete", "estimate_tokens", "exchange", "excused", "expired", "failed",
        "first_byte_s", "move", "outcome", "paid", "path", "replica", "request_id", "started_s",
        "status", "stream", "task", "ticket", "tokenised", "told", "totals", "tried", "usage",
    )  # fmt: skip

    def __init__(self, *, request_id: str, path: str, started_s: float) -> None:
        self.request_id = request_id
        self.path = path
        self.started_s = started_s
        self.task: asyncio.Task[object] | None = None
        """To interrupt it; set while it is admitted."""
        self.client: Client | None = None
        self.totals: ClientTotals | None = None
        self.stream = False
        self.activation_s = 0.0
        """How long it waited for the first replica of a service that stood at zero: no limit of its own counts it."""
        self.estimate_tokens = 0
        """Input tokens, before the replica says how many there are: exact where the prompt was tokenised."""
        self.tokenised: Tokenised | None = None
        self.ticket: Ticket | None = None
        """Where it is now; None between attempts."""
        self.exchange: Exchange | None = None
        self.replica = ""
        """Name of the last replica that it was sent to."""
        self.attempts = 0
        """Times it was sent."""
        self.booking: Booking | None = None
        """This attempt in the ledger, while it is open."""
        self.failed: tuple[Ticket, ...] = ()
        """At replicas that failed it: 5xx, garbage, or a broken connection before the first byte."""
        self.tried: ReplicaSet = EMPTY
        """Slots of those."""
        self.excused = 0
        """How many of those had not begun it when they were lost."""
        self.move: Move | None = None
        """Set when it is taken back from a replica that drains."""
        self.paid = UNPAID
        """What replicas have charged the client already that failed it, or that it was taken back from (R11)."""
        self.first_byte_s: float | None = None
        """When the client was sent the first event, or the whole answer."""
        self.usage: Usage | None = None
        """Estimated where the replica does not say it. `NOTHING`: it refused. None: nobody knows."""
        self.told = False
        """Whether the replica said it."""
        self.complete = False
        """The client was sent the last event of its stream before it left."""
        self.status = 0
        self.outcome: Outcome | None = None
        """None: it went well."""
        self.expired = False
        """The router is going away and waits no longer."""

    @property
    def spent(self) -> int:
        """Attempts that count."""
        return len(self.failed) - self.excused

    def interrupt(self) -> None:
        """The router can wait no longer: the request ends with an error."""
        if self.task is not None:
            self.expired = True
            self.task.cancel()

    def left(self) -> None:
        """Its client went away; many do with the last event, before the replica has closed the stream."""
        if not self.complete:
            self.outcome = Outcome.CLIENT_GONE

    def interrupted(self) -> bool:
        """Whether a cancellation came from `interrupt`, and not from a client that left; takes it back."""
        if self.expired and self.task is not None:
            self.task.uncancel()
        return self.expired


class AdmittedRequest(NamedTuple):
    """What is to be done for an admitted request."""

    client: Client
    totals: ClientTotals
    inference: Inference
    plan: Plan
