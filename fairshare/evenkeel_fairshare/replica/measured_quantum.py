"""`clientQuantum: Auto`: a share of a second of the replica's own service (design R2; docs/design/0005).

A constant Q^u is seconds of service for a small replica and milliseconds for a large one, and clients wait about as long as
the others need for their quanta. A larger quantum bought no cache hits in any workload.

Service is measured only while requests wait. Otherwise a replica with little to do would count as a slow one.
"""

from __future__ import annotations

from typing import Final

SHARE_S: Final = 0.125
"""Seconds of the replica's service in a quantum."""
FIRST_QUANTUM: Final = 1000.0
"""Weighted tokens, until the first measurement; and always where no policy measures."""
SMALLEST_QUANTUM: Final = 100.0
LARGEST_QUANTUM: Final = 8000.0
"""Weighted tokens. Routers take it for replicas that report no quantum (R5)."""
PERIOD_S: Final = 10.0
"""Seconds with waiting requests in a measurement."""
TOLERANCE: Final = 1.5
"""Ratio below which a new measurement changes nothing: a change costs a pass over all clients."""


class MeasuredQuantum:
    """The quantum in force, and the measurement of the service behind it."""

    __slots__ = ("_elapsed_s", "_last", "_service", "value")

    def __init__(self) -> None:
        self.value = FIRST_QUANTUM
        """Weighted tokens per refill for weight 1."""
        self._elapsed_s = 0.0
        self._service = 0.0
        self._last: tuple[float, float] | None = None
        """(time, total service) at the last pass; None if no request waited at some time since."""

    def queue_was_empty(self) -> None:
        """The time since the last pass does not count."""
        self._last = None

    def begin_pass(self, now_s: float, service: float) -> bool:
        """A pass of admissions over waiting requests; `service`: weighted tokens served so far. Whether `value` changed."""
        last, self._last = self._last, (now_s, service)
        if last is None:
            return False
        self._elapsed_s += now_s - last[0]
        self._service += service - last[1]
        if self._elapsed_s < PERIOD_S:
            return False
        measured = SHARE_S * self._service / self._elapsed_s
        self._elapsed_s = self._service = 0.0
        quantum = min(max(measured, SMALLEST_QUANTUM), LARGEST_QUANTUM)
        if 1 / TOLERANCE < quantum / self.value < TOLERANCE:
            return False
        self.value = quantum
        return True
