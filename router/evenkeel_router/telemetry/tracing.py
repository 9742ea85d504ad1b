"""Traces of requests, off by default: the spans go to an OpenTelemetry collector (OTLP over HTTP).

The SDK takes 20 MiB and a third of a second to import; a router without `tracing` in its configuration never does.
"""

from __future__ import annotations

import asyncio
import logging
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from evenkeel_contract.routerconfig import RouterConfig

if TYPE_CHECKING:
    from evenkeel_router.telemetry.spans import Spans

_log = logging.getLogger(__name__)
LAST_EXPORT_S: Final = 3.0  # for the last spans, when the router ends


class _DroppedSpans:
    """Spans that no collector received. The threads that export spans add to it."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = Lock()

    def add(self, count: int) -> None:
        """Count more of them."""
        with self._lock:
            self.total += count


class Tracing:
    """Traces, while the configuration in force asks for them."""

    def __init__(self, config: RouterConfig) -> None:
        self.dropped = _DroppedSpans()
        self._config: RouterConfig | None = None
        self.spans: Spans | None = None
        """Where traces begin; None while tracing is off."""
        self.apply(config)

    def apply(self, config: RouterConfig) -> None:
        """Use a changed configuration. Spans that wait are still exported, by a thread."""
        before, self._config = self._config, config
        if before is not None and before.tracing == config.tracing:
            return
        self._end()
        if config.tracing is None:
            return
        try:
            from evenkeel_router.telemetry.spans import Spans
        except ImportError as error:
            _log.error(
                "tracing is off: %s; install the packages with: pip install 'evenkeel-llm[tracing]'",
                error,
            )
            return
        self.spans = Spans(config, config.tracing, self.dropped.add)

    async def close(self) -> None:
        """Export what waits, for a few seconds at most."""
        exporting = self._end()
        if exporting is not None:
            await asyncio.to_thread(exporting.join, LAST_EXPORT_S)

    def _end(self) -> Thread | None:
        if self.spans is None:
            return None
        # A daemon: a collector that does not answer must not keep the process alive.
        exporting = Thread(target=self.spans.close, daemon=True)
        exporting.start()
        self.spans = None
        return exporting
