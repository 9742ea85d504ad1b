"""What routers report of a service: engines without the policy of their plug-in (condition PluginInactive, design R12), and a
store of the ledger that fails (condition Degraded).

Routers are asked when the engines' Deployment has changed, repeatedly while either lasts, and once a minute where the ledger has
a store: it may fail at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from evenkeel_operator.cluster.observe import Observed
from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core import reasons
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.rotation import Answers
from evenkeel_operator.core.status import inactive_before
from evenkeel_operator.pass_state import PassState

AGAIN_S: Final = 15.0
STORE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Reported:
    """What is known of one service."""

    inactive: tuple[str, ...] = ()
    """Distinct reasons, sorted; empty: every engine's policy is active, as far as is known."""
    store_error: str = ""
    """What the ledger's store answered a router last, if it fails."""
    version: str = ""
    """Resource version of the Deployment that the answer is about."""
    again_s: float | None = None
    """Seconds until routers are asked again without an event."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """What belongs to condition Degraded."""
        if not self.store_error:
            return ()
        message = f"A router cannot use the ledger's store, and keeps the ledger in memory: {self.store_error}."
        return (Note(reasons.STORE_FAILS, message),)


class Reports:
    """Reports of the engines of all services."""

    def __init__(self, ask: Callable[[Observed], Awaitable[Answers]]) -> None:
        """`ask` returns the replicas by every ready router of a service."""
        self._ask = ask
        self._known: dict[Key, Reported] = {}

    async def look(self, state: PassState) -> PassState:
        """Ask routers if need be. Raises `ClusterError`."""
        found = await self._found(state.seen, has_store=state.has_store)
        reported = state.with_reported(inactive=found.inactive, notes=found.notes)
        return reported.due(found.again_s)

    async def _found(self, seen: Observed, *, has_store: bool) -> Reported:
        engines = seen.engines
        version = "" if engines is None else str(engines["metadata"].get("resourceVersion", ""))
        known = self._known.get(seen.key)
        if engines is None and not has_store:  # not created yet, or another owner's
            self.forget(seen.key)
            return Reported()
        if known is not None and known.version == version and known.again_s is None:
            return known
        received = [answer for answer in await self._ask(seen) if answer is not None]
        if not received:
            return known or Reported(inactive_before(seen.raw))
        why = {one.inactive_reason for answer in received for one in answer.replicas}
        failing = max(answer.store_error for answer in received)
        again_s = AGAIN_S if any(why) or failing else STORE_S if has_store else None
        self._known[seen.key] = Reported(tuple(sorted(why - {""})), failing, version, again_s)
        return self._known[seen.key]

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._known.pop(key, None)
