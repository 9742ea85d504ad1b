"""One request from its head to its end: what the steps find out about it, for totals, metrics and the request log.

What the request holds at a replica is not here: its current `Attempt` owns that.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.identity import Client
from evenkeel_router.api.inference import Inference
from evenkeel_router.api.outcomes import Outcome
from evenkeel_router.fleet.selection import Match
from evenkeel_router.prefix.tokenised import Tokenised
from evenkeel_router.request.attempt import Attempt
from evenkeel_router.request.totals import ClientTotals


class RequestState:
    """One request."""

    __slots__ = (
        "activation_s", "attempt", "attempts", "client", "complete", "estimate_tokens", "expired", "first_byte_s",
        "outcome", "path", "replica", "request_id", "started_s", "status", "stream", "task", "tokenised", "totals", "usage",
        "usage_reported",
    )  # fmt: skip

    def __init__(self, *, request_id: str, path: str, started_s: float) -> None:
        self.request_id = request_id
        self.path = path
        self.started_s = started_s
        # Identify, parse, admit.
        self.client: Client | None = None
        self.totals: ClientTotals | None = None
        self.stream = False
        self.estimate_tokens = 0
        """Input tokens, before the replica reports them: exact where the prompt was tokenised."""
        self.tokenised: Tokenised | None = None
        self.task: asyncio.Task[object] | None = None
        """To interrupt the request; set while it is admitted."""
        self.expired = False
        """The router ends and waits for the request no longer."""
        # Select and forward.
        self.activation_s = 0.0
        """Time that it waited for the first replica of a service at zero; it counts towards no other limit."""
        self.attempt: Attempt | None = None
        """The current attempt, or the last one."""
        self.attempts = 0
        """Times that it was sent."""
        self.replica = ""
        """Name of the last replica that it was sent to."""
        # The answer.
        self.first_byte_s: float | None = None
        """When the client was sent the first event, or the whole answer."""
        self.status = 0
        self.complete = False
        """The client was sent the last event of its stream before it left."""
        self.usage: Usage | None = None
        """Estimated where the replica does not report it. `NOTHING`: it refused. None: unknown."""
        self.usage_reported = False
        """Whether the replica reported `usage`."""
        self.outcome: Outcome | None = None
        """None: success."""

    def interrupt(self) -> None:
        """The router can wait no longer: the request ends with an error."""
        if self.task is not None:
            self.expired = True
            self.task.cancel()

    def client_left(self) -> None:
        """The client went away. Many do so with the last event, before the replica has closed the stream."""
        if not self.complete:
            self.outcome = Outcome.CLIENT_GONE

    def interrupted(self) -> bool:
        """Whether a cancellation came from `interrupt`, and not from a client that left; takes it back."""
        if self.expired and self.task is not None:
            self.task.uncancel()
        return self.expired


class AdmittedRequest(NamedTuple):
    """What an admitted request asks for."""

    client: Client
    totals: ClientTotals
    inference: Inference
    match: Match
