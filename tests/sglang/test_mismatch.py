"""An SGLang that does not fit the plug-in: it starts, says so, and the router's gate keeps it fair (R12)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from evenkeel_contract.enginesettings import ON_MISMATCH_VARIABLE
from evenkeel_operator.manifests.monitoring import alert_groups

from bench.gate import PLUG_IN, SGLANG, running
from bench.gpu.engine import EngineError
from tests.sglang.engine import ROOT, engine_environment
from tests.support.build_contexts import sample_context
from tests.support.mismatched import serve_by_weight
from tests.support.promtool import promtool

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(3000)]
CHANGED = os.pathsep.join(
    [
        str(ROOT / "tests/sglang/changed_seam"),
        *(
            str(ROOT / part)
            for part in ("plugins/sglang", "plugins/common", "contract", "fairshare")
        ),
    ]
)
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
    settings = {"PYTHONPATH": CHANGED}
    replica, metrics = serve_by_weight(
        SGLANG, policy="dlpm", environment=sglang, folder=tmp_path, settings=settings
    )
    assert "does not fit the plug-in" in (tmp_path / "engine.log").read_text()
    assert "calc_priority takes (self, requests" in replica.inactive_reason

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
        running(
            SGLANG,
            SGLANG.setups[PLUG_IN],
            environment=sglang,
            folder=tmp_path,
            settings=settings,
        ),
    ):
        pass
    assert "Load weight" not in (tmp_path / "engine.log").read_text()
