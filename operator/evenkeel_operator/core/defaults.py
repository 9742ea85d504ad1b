"""The operator's settings that decisions depend on; they apply to all services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenkeel_contract.spec import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """How the platform's Prometheus selects the generated monitors and rules."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels on every PodMonitor and PrometheusRule, for the Prometheus selector."""
    runbooks: str = "docs/runbooks"
    """Base URL of runbooks; the page's name is appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Settings of the operator."""

    version: str
    """Of the operator; what the annotation `evenkeel.dev/upgrade` may name."""
    router_image: str
    sglang_image: str
    simulator_image: str
    pull_policy: str | None = None
    """None: the cluster's default."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets in the service's namespace."""
    scrapers: Mapping[str, str] = field(default_factory=dict)
    """Labels of the namespaces that may read metrics; empty: all."""
    operator_namespace: str | None = None
    monitoring: Monitoring = field(default_factory=Monitoring)
    prometheus_urls: tuple[str, ...] = ()
    """Beginnings of the addresses that a scaler may read; empty: any. Otherwise a tenant could make the operator
    query any address that only the operator can reach."""

    def image(self, runtime: Runtime) -> str:
        """The default engine image."""
        return self.simulator_image if runtime is Runtime.SIMULATOR else self.sglang_image
