"""What the operator says of services in its metrics."""

from __future__ import annotations

import asyncio

import pytest
from evenkeel_operator import metrics
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.scaling import Scaling
from evenkeel_operator.core.status import Findings
from evenkeel_operator.core.workload import Workload
from evenkeel_operator.metrics import ServiceCollector
from prometheus_client import CollectorRegistry, generate_latest


def exposed(collector: ServiceCollector) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    return sorted(line for line in lines if not line.startswith("#"))


def seen(collector: ServiceCollector, *, ready: int, reason: str) -> None:
    engines, routers = Workload(wanted=2, ready=ready), Workload(wanted=1, ready=1)
    scaling = Scaling(2, Note("NotConfigured", ""))
    found = Findings(faults=(), runs=True, engines=engines, routers=routers, scaling=scaling)
    condition = {"type": "Progressing", "status": "False", "reason": reason}
    collector.found("ns", "a", found, {"conditions": [condition]})


def test_a_service_has_one_set_of_series_and_none_once_it_is_gone() -> None:
    collector = ServiceCollector()
    seen(collector, ready=0, reason="RolloutStuck")
    seen(collector, ready=2, reason="Stable")
    service = 'service_name="a",service_namespace="ns"'
    assert exposed(collector) == [
        f'evenkeel_operator_condition{{reason="Stable",{service},status="False",type="Progressing"}} 1.0',
        f"evenkeel_operator_config_fill_ratio{{{service}}} 0.0",
        f'evenkeel_operator_replicas_ready{{component="engine",{service}}} 2.0',
        f'evenkeel_operator_replicas_ready{{component="router",{service}}} 1.0',
        f'evenkeel_operator_replicas_wanted{{component="engine",{service}}} 2.0',
        f'evenkeel_operator_replicas_wanted{{component="router",{service}}} 1.0',
    ]
    collector.gone("ns", "a")
    assert exposed(collector) == []


async def test_a_head_that_comes_too_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "HEAD_S", 0.2)
    async with metrics.serving("127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost:")
        async with asyncio.timeout(20.0):
            assert await reader.read() == b""
        writer.close()
