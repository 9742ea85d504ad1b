"""What the API server said no to, so that it is not asked again with every pass.

Place in the pass: plan → **apply** → status. Every event of a service is a pass, and one that rolls out has many: a
write that is refused waits twice as long each time, unless something else is wanted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random
from typing import Final

from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core.objects import Ref

# Quotas and policies are changed by people: those who look, within seconds; the others when they have time.
FIRST_RETRY_S: Final = 5.0
LAST_RETRY_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """One answer."""

    what: str
    """Which write it was: another one of the same object may do better."""
    message: str
    attempts: int
    due_s: float
    """When to try again, on the monotonic clock."""


class Refusals:
    """Of all services, by object."""

    def __init__(self, *, rng: Random, monotonic_s: Callable[[], float]) -> None:
        self._rng = rng
        self._now_s = monotonic_s
        self._known: dict[Key, dict[Ref, Refusal]] = {}

    def pending(self, key: Key, ref: Ref, what: str) -> Refusal | None:
        """The last answer to the very same write, where it is too early to try again."""
        found = self._known.get(key, {}).get(ref)
        waits = found is not None and found.what == what and self._now_s() < found.due_s
        return found if waits else None

    def refused(self, key: Key, ref: Ref, what: str, *, message: str) -> Refusal:
        """The API server said no."""
        known = self._known.setdefault(key, {})
        before = known.get(ref)
        attempts = 1 if before is None or before.what != what else before.attempts + 1
        wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempts - 1, 10))
        # What one policy refuses of all services must not come back all at once.
        due_s = self._now_s() + wait_s * self._rng.uniform(0.5, 1.0)
        known[ref] = Refusal(what, message, attempts, due_s)
        return known[ref]

    def wait_s(self, refusal: Refusal) -> float:
        """How long until the write is due again."""
        return max(0.0, refusal.due_s - self._now_s())

    def keep(self, key: Key, refs: Collection[Ref]) -> None:
        """Forget what concerns other objects: nothing is to be written there any more."""
        kept = {ref: one for ref, one in self._known.pop(key, {}).items() if ref in refs}
        if kept:
            self._known[key] = kept
