"""How routers trace requests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from evenkeel_contract.values import Length, Range, Url


class ClientNames(Enum):
    """How traces name tenants and clients."""

    HASHED = "Hashed"  # the first 16 digits of a SHA-256
    PLAIN = "Plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    """Traces of requests, sent to an OpenTelemetry collector (OTLP over HTTP)."""

    endpoint: Annotated[str, Url(), Length(1, 2048)]
    """Base address of the collector, such as `http://otel-collector.monitoring:4318`. The router appends `/v1/traces`."""
    sampling_rate_per_million: Annotated[int, Range(0, 1_000_000)] = 10_000
    """How many of a million requests are traced. The `traceparent` header of a request overrides this rate."""
    client_names: ClientNames = ClientNames.HASHED
    """How traces name tenants and clients: by a hash (Hashed) or by name (Plain)."""
