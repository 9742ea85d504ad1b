"""Names and kinds of the router's metrics (design §8)."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def name_of(name: str) -> str:
    """The whole name of a metric."""
    return f"evenkeel_router_{name}"


def counter(name: str, help_text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    """A total."""
    return CounterMetricFamily(name_of(name), help_text, labels=labels)


def gauge(name: str, help_text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    """A state."""
    return GaugeMetricFamily(name_of(name), help_text, labels=labels)
