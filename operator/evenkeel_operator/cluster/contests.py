"""Services that another operator serves too, with other settings.

Both would write in turn, several times a second, and each write may be a rollout. So each waits longer from one write to the next, and
says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from evenkeel_operator.cluster.store import Key
from evenkeel_operator.core import reasons
from evenkeel_operator.core.objects import DIGEST_ANNOTATION, Change, Manifest, Ref, ref_of
from evenkeel_operator.core.reasons import Note

FIRST_WAIT_S: Final = 5.0
LAST_WAIT_S: Final = 300.0
STATUS_S: Final = 15.0
"""How often the status of such a service is written: the other operator writes it otherwise."""
NOTE: Final = Note(
    reasons.SECOND_OPERATOR,
    "Another operator serves this service too, and writes its objects otherwise. Remove one installation of the chart, or give each its "
    "own watchNamespaces.",
)


@dataclass(slots=True)
class _Contest:
    lost_s: float
    """When an object was last found otherwise than this operator had written it."""
    due_s: float
    writes: int = 1
    status_s: float | None = None


class Contests:
    """What this operator wrote, and where another one replaced it."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._now_s = monotonic_s
        self._written: dict[Key, dict[Ref, str]] = {}
        self._known: dict[Key, _Contest] = {}

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._written.pop(key, None)
        self._known.pop(key, None)

    def wrote(self, key: Key, manifest: Manifest) -> None:
        """This operator has written the object."""
        digest = manifest["metadata"]["annotations"][DIGEST_ANNOTATION]
        self._written.setdefault(key, {})[ref_of(manifest)] = digest

    def is_lost(self, key: Key, change: Change) -> bool:
        """Whether this very manifest was written before, and the object now has the digest of another one. People change fields, not
        the digest."""
        digest = change.manifest["metadata"]["annotations"][DIGEST_ANNOTATION]
        is_ours = self._written.get(key, {}).get(change.ref) == digest
        return is_ours and not change.new and not change.foreign

    def may_write(self, key: Key) -> bool:
        """Whether to write now what was lost. The first loss may be an old file that a person applied: it is written at once."""
        now_s, known = self._now_s(), self._known.get(key)
        if known is None or now_s - known.lost_s > 2 * LAST_WAIT_S:
            self._known[key] = _Contest(lost_s=now_s, due_s=now_s)
            return True
        known.lost_s = now_s
        if now_s < known.due_s:
            return False
        known.due_s = now_s + min(LAST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(known.writes - 1, 10))
        known.writes += 1
        return True

    def rest_s(self, key: Key) -> float | None:
        """Seconds until lost objects may be written again; None: no other operator writes objects of the service."""
        known, now_s = self._known.get(key), self._now_s()
        if known is None or known.writes < 2 or now_s - known.lost_s > 2 * LAST_WAIT_S:
            return None
        return max(0.0, known.due_s - now_s)

    def may_report(self, key: Key) -> bool:
        """Whether to write the status now."""
        if self.rest_s(key) is None:
            return True
        known, now_s = self._known[key], self._now_s()
        if known.status_s is not None and now_s - known.status_s < STATUS_S:
            return False
        known.status_s = now_s
        return True
