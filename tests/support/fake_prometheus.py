"""Prometheus as the operator sees it, at its one seam to it: what it says is set by the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from evenkeel_operator.cluster.prometheus import PrometheusError, Source
from evenkeel_operator.core.recommendation import AGE, ASKED, Answers, Sample


class FakePrometheus:
    """Does not answer, until somebody says what."""

    def __init__(self) -> None:
        self.answers: Answers | None = None
        self.sources: list[Source] = []
        self.queries: Mapping[str, str] = {}
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """What happens while it answers."""

    async def ask(self, source: Source, queries: Mapping[str, str]) -> Answers:
        self.sources.append(source)
        self.queries = queries
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.answers is None:
            raise PrometheusError("PrometheusUnreachable", "nobody answers")
        return {name: found for name, found in self.answers.items() if name in queries}


def answers(rates: Mapping[tuple[str, str], float] | None = None, **figures: float) -> Answers:
    """Fresh figures: what clients (tenant, client) ask for, and others by the name of their query."""
    asked = tuple(
        Sample({"tenant": tenant, "client": client}, rate)
        for (tenant, client), rate in (rates or {}).items()
    )
    single = {name: (Sample({}, value),) for name, value in {AGE: 5.0, **figures}.items()}
    return {ASKED: asked, **single}
