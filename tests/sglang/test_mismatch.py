"""An SGLang that does not fit the plug-in: it starts, says so, and the router's gate keeps it fair (R12)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
import yaml
from evenkeel_contract.adminstate import decode_state
from evenkeel_contract.enginesettings import ON_MISMATCH_VARIABLE
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_operator.manifests.monitoring import alert_groups

from bench.gate import SGLANG, running, sglang_queue
from bench.gate_load import Setup, observe
from bench.gpu.engine import EngineError
from tests.sglang.engine import ROOT, engine_environment
from tests.support.build_contexts import sample_context
from tests.support.promtool import promtool

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(3000)]
CHANGED = os.pathsep.join(
    [
        str(ROOT / "tests/sglang/changed_seam"),
        *(str(ROOT / part) for part in ("sglang_plugin", "contract", "fairshare")),
    ]
)
GATED = Setup("dlpm", QueueOwner.AUTO, has_plug_in=True)
REQUESTS = 250
"""One request more or less of one tenant is then far less than the 5 %."""
ENGINE = 'namespace="team-ml",evenkeel_dev_service="llama",pod="e1"'


@pytest.fixture
def sglang() -> Path:
    """The environment of `make sglang`."""
    folder = engine_environment()
    if folder is None:
        pytest.skip("the real engine is not installed: make sglang")
    return folder


def test_an_engine_whose_seam_changed_is_gated_alerts_and_is_fair(
    sglang: Path, tmp_path: Path
) -> None:
    with running(
        SGLANG, GATED, environment=sglang, folder=tmp_path, settings={"PYTHONPATH": CHANGED}
    ) as site:
        figures = asyncio.run(
            observe(
                [site.router.url],
                site.engine,
                warmup_s=8.0,
                seconds=20.0,
                requests=REQUESTS,
                queue=sglang_queue,
            )
        )
        state = decode_state(
            httpx.get(f"{site.router.admin_url}/v1/state").raise_for_status().content
        )
        metrics = httpx.get(f"{site.engine}/metrics").raise_for_status().text
    log = tmp_path / "engine.log"
    assert "does not fit the plug-in" in log.read_text()
    assert figures.light == pytest.approx(0.8, rel=0.05)
    assert figures.queue <= 2
    (replica,) = state.replicas
    assert "calc_priority takes (self, requests" in replica.inactive_reason
    assert replica.gate_limit > 0

    samples = [line for line in metrics.splitlines() if line.startswith("evenkeel_engine_p")]
    assert any("plugin_inactive{" in line and "calc_priority" in line for line in samples)
    active = [line for line in samples if line.startswith("evenkeel_engine_policy_active{")]
    fires(active, tmp_path)
    with pytest.raises(AssertionError):
        fires([line.replace(" 0.0", " 1.0") for line in active], tmp_path)


def fires(samples: Sequence[str], folder: Path) -> None:
    """The query of the alert finds the engine whose page has these samples."""
    (alert,) = [
        rule
        for group in alert_groups(sample_context("gpu.yaml"))
        for rule in group["rules"]
        if rule["alert"] == "EvenkeelPluginInactive"
    ]
    series = {f'up{{{ENGINE},job="team-ml/llama-engine"}}': 1.0}
    for sample in samples:
        name, value = sample.rsplit(" ", 1)
        series[name.replace("{", f"{{{ENGINE},", 1)] = float(value)
    test = {
        "input_series": [{"series": key, "values": f"{one}x5"} for key, one in series.items()],
        "promql_expr_test": [
            {
                "expr": f"count({alert['expr']})",
                "eval_time": "1m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump({"tests": [test]}))
    code, said = promtool("test", "rules", folder / "test.yaml")
    assert code == 0, said


def test_with_refuse_it_stops_at_once(sglang: Path, tmp_path: Path) -> None:
    settings = {"PYTHONPATH": CHANGED, ON_MISMATCH_VARIABLE: "Refuse"}
    with (
        pytest.raises(EngineError, match="Refusing to start"),
        running(SGLANG, GATED, environment=sglang, folder=tmp_path, settings=settings),
    ):
        pass
    assert "Load weight" not in (tmp_path / "engine.log").read_text()
