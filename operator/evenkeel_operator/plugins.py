"""Whether engines run without the policy of their plug-in, for condition PluginInactive (design R12). Routers know, by engines' reports.

Routers are asked when the engines' Deployment has changed, since only a new process can change the answer, and repeatedly while
the condition is True.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from evenkeel_contract.names import engine_name

from evenkeel_operator.cluster.observe import Observed
from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core.objects import Ref
from evenkeel_operator.core.rotation import Answers
from evenkeel_operator.core.status import inactive_before

AGAIN_S: Final = 15.0

Ask: TypeAlias = Callable[[Key, Observed], Awaitable[Answers]]
"""The replicas by every ready router of a service."""


@dataclass(frozen=True, slots=True)
class Inactive:
    """What is known of one service."""

    why: tuple[str, ...] = ()
    """Distinct reasons, sorted; empty: every engine's policy is active, as far as is known."""
    version: str = ""
    """Of the Deployment that the answer is about."""

    @property
    def again_s(self) -> float | None:
        """Seconds until routers are asked again without an event."""
        return AGAIN_S if self.why else None


class Plugins:
    """For all services."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[Key, Inactive] = {}

    async def look(self, key: Key, seen: Observed) -> Inactive:
        """Ask routers if need be."""
        engines = seen.children.get(Ref("Deployment", engine_name(key.name)))
        if engines is None:  # not created yet, or another owner's
            self.forget(key)
            return Inactive()
        version = str(engines["metadata"].get("resourceVersion", ""))
        known = self._known.get(key)
        if known is not None and known.version == version and not known.why:
            return known
        received = [answer for answer in await self._ask(key, seen) if answer is not None]
        if not received:
            return known or Inactive(inactive_before(seen.raw))
        why = {one.inactive_reason for answer in received for one in answer.replicas}
        self._known[key] = Inactive(tuple(sorted(why - {""})), version)
        return self._known[key]

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._known.pop(key, None)
