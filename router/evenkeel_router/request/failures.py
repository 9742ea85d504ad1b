"""Attempts that failed before the client was sent anything: why, and whether another replica is asked.

`forward` has the table of what follows each way of failing.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Final

from evenkeel_router.api.errors import CONTEXT_LENGTH_EXCEEDED, Outcome, Refusal
from evenkeel_router.transport.upstream import BrokenError, TooLargeError, UnansweredError


class Cause(Enum):
    """Why an attempt failed before the client was sent anything, and so whether another replica is asked."""

    LOST = "lost"
    """A broken connection, or a 5xx: another replica is asked, while attempts are left."""
    BUSY = "busy"
    """The replica has no room, by its own words (429, 503): the same."""
    SILENT = "silent"
    """The replica sends nothing to any client: once, within the same time limit."""
    UNREADABLE = "unreadable"
    """An answer that is not JSON, or an empty stream: once, because an answer may be computed for it each time."""
    REQUEST = "refused"
    """A 4xx, whose cause may be the request: once. The same from another replica is the answer."""
    KNOWN = "known"
    """What would be the same at any replica: a context that is too long, an answer that is too large. No other replica is asked."""


_ONCE: Final = frozenset((Cause.SILENT, Cause.UNREADABLE, Cause.REQUEST))


class FailedAttempt(Exception):
    """An attempt failed before the client was sent anything."""

    def __init__(
        self,
        why: str,
        *,
        cause: Cause = Cause.LOST,
        unanswered: bool = False,
        refusal: Refusal | None = None,
        began: bool = False,
    ) -> None:
        """`unanswered`: nothing of an answer came. `refusal`: what the client gets if no other replica does better. `began`: content came."""
        super().__init__(why)
        self.cause = cause
        self.unanswered = unanswered
        self.refusal = refusal
        self.began = began

    @classmethod
    def of_refusal(cls, refusal: Refusal) -> FailedAttempt:
        """The replica refused the request: with a status, or with an error inside a 200."""
        status = refusal.status
        if status in BUSY_STATUSES:
            cause = Cause.BUSY
        elif status >= 500 or status in KEY_STATUSES:
            cause, refusal.status = Cause.LOST, Outcome.REPLICA_FAILED.status
            refusal.outcome = Outcome.REPLICA_FAILED
        else:
            known = refusal.code == CONTEXT_LENGTH_EXCEEDED
            cause = Cause.KNOWN if known else Cause.REQUEST
        return cls(f"the replica answered {status}", cause=cause, refusal=refusal)

    @classmethod
    def of_break(cls, error: BrokenError, *, began: bool = False) -> FailedAttempt:
        """The connection broke before the client was sent anything. `began`: content had come."""
        if isinstance(error, TooLargeError):
            return cls(str(error), cause=Cause.KNOWN)
        return cls(str(error), unanswered=isinstance(error, UnansweredError), began=began)

    @property
    def computed(self) -> bool:
        """Whether the replica may have computed something for the request: it did not refuse it, or with a 5xx."""
        return self.refusal is None or self.cause is Cause.LOST

    def may_go_on(self, before: Collection[Cause]) -> bool:
        """Whether another replica is asked. `before`: the causes of earlier failures."""
        if self.cause is Cause.KNOWN:
            return False
        return self.cause not in _ONCE or self.cause not in before


BUSY_STATUSES: Final = frozenset((429, 503))
KEY_STATUSES: Final = frozenset((401, 403))
"""Statuses that are about the router's own key."""
