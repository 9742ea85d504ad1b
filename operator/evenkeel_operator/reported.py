"""What routers report of a service: engines without the policy of their plug-in (condition PluginInactive, design R12), engines
that get requests without a client key, and a store of the ledger that fails (both condition Degraded).

Routers are asked when the engines' Deployment has changed, repeatedly while one of these lasts, and every few minutes at other times:
keys may be lost, and a store may fail, at any time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from evenkeel_operator.cluster.observed import Observed
from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core import reasons
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.rotation import Answers
from evenkeel_operator.core.status import inactive_before
from evenkeel_operator.pass_state import PassState

AGAIN_S: Final = 15.0
STORE_S: Final = 60.0
KEYS_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Reported:
    """What is known of one service."""

    inactive: tuple[str, ...] = ()
    """Distinct reasons, sorted; empty: every engine's policy is active, as far as is known."""
    store_error: str = ""
    """What the ledger's store answered a router last, if it fails."""
    unnamed_share: float = 0.0
    """The largest share of requests without a client key at an engine, 0 below a few percent."""
    version: str = ""
    """Resource version of the Deployment that the answer is about."""
    again_s: float | None = None
    """Seconds until routers are asked again without an event."""
    asked_s: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether nothing was reported that has to end."""
        return not (self.inactive or self.store_error or self.unnamed_share)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What belongs to condition Degraded."""
        notes = []
        if self.unnamed_share:
            message = (
                f"An engine gets {self.unnamed_share:.0%} of its requests without a client key. They count as one client's, so "
                "they come past the routers, or a flag or variable of the engine loses the key."
            )
            notes.append(Note(reasons.CLIENT_KEYS_MISSING, message))
        if self.store_error:
            message = f"A router cannot use the ledger's store, and keeps the ledger in memory: {self.store_error}."
            notes.append(Note(reasons.STORE_FAILS, message))
        return tuple(notes)


class Reports:
    """Reports of the engines of all services."""

    def __init__(
        self, ask: Callable[[Observed], Awaitable[Answers]], monotonic_s: Callable[[], float]
    ) -> None:
        """`ask` returns the replicas by every ready router of a service."""
        self._ask = ask
        self._monotonic_s = monotonic_s
        self._known: dict[Key, Reported] = {}

    async def look(self, state: PassState) -> PassState:
        """Ask routers if need be. Raises `ClusterError`."""
        watches = state.has_store or state.is_external
        found = await self._found(state.seen, watches=watches, has_store=state.has_store)
        reported = state.with_reported(inactive=found.inactive, notes=found.notes)
        return reported.due(found.again_s)

    async def _found(self, seen: Observed, *, watches: bool, has_store: bool) -> Reported:
        engines = seen.engines
        version = "" if engines is None else str(engines["metadata"].get("resourceVersion", ""))
        known, now_s = self._known.get(seen.key), self._monotonic_s()
        if engines is None and not watches:  # not created yet
            self.forget(seen.key)
            return Reported()
        if known is not None and known.version == version and known.is_good:
            rest_s = known.asked_s + (STORE_S if has_store else KEYS_S) - now_s
            if rest_s > 0:
                return replace(known, again_s=rest_s)
        received = [answer for answer in await self._ask(seen) if answer is not None]
        if not received:
            return known or Reported(inactive_before(seen.raw))
        why = {one.inactive_reason for answer in received for one in answer.replicas}
        failing = max(answer.store_error for answer in received)
        unnamed = max(
            (one.unnamed_share for answer in received for one in answer.replicas), default=0.0
        )
        usual_s = STORE_S if has_store else KEYS_S
        good = not (any(why) or failing or unnamed)
        found = self._known[seen.key] = Reported(
            inactive=tuple(sorted(why - {""})),
            store_error=failing,
            unnamed_share=unnamed,
            version=version,
            again_s=usual_s if good else AGAIN_S,
            asked_s=now_s,
        )
        return found

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._known.pop(key, None)
