"""What the operator says of services in its metrics."""

from __future__ import annotations

from evenkeel_operator.metrics import ServiceCollector, ServiceSample
from prometheus_client import CollectorRegistry, generate_latest


def exposed(collector: ServiceCollector) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if not line.startswith("#"))


def figures(*, ready: int, reason: str) -> ServiceSample:
    return ServiceSample(
        replicas={"engine": (2, ready)}, conditions=(("Progressing", "False", reason),)
    )


def test_a_service_has_one_set_of_series_and_none_once_it_is_gone() -> None:
    collector = ServiceCollector()
    collector.found("ns", "a", figures(ready=0, reason="RolloutStuck"))
    collector.found("ns", "a", figures(ready=2, reason="Stable"))
    service = 'service_name="a",service_namespace="ns"'
    assert exposed(collector) == [
        f'evenkeel_operator_condition{{reason="Stable",{service},status="False",type="Progressing"}} 1.0',
        f'evenkeel_operator_replicas_ready{{component="engine",{service}}} 2.0',
        f'evenkeel_operator_replicas_wanted{{component="engine",{service}}} 2.0',
    ]
    collector.gone("ns", "a")
    assert exposed(collector) == []
