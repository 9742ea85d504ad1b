"""Every alert fires in its scenes with the expected labels and summary, and in no other (promtool)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from evenkeel_operator.manifests.monitoring import alert_groups

from tests.support.build_contexts import sample_context
from tests.support.promtool import promtool

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CASES: Mapping[str, Any] = yaml.safe_load((HERE / "alerts.yaml").read_text())
LONG = (
    "EvenkeelTtftBudgetBurning",
    "EvenkeelRequestsFailing",
    "EvenkeelRequestsGivenUp",
    "EvenkeelRequestsRefused",
    "EvenkeelReplicaFailing",
)
"""Alerts with windows of hours: their silent scenes are looked at late."""
SERVICE = {
    "of": 'namespace="team-ml",evenkeel_dev_service="llama"',
    "operator": 'service_namespace="team-ml",service_name="llama"',
}
OF_THE_OPERATOR = (
    "EvenkeelOperatorDown",
    "EvenkeelReconcileFailing",
    "EvenkeelConfigNearlyFull",
    "EvenkeelWatchFailing",
)
OPERATOR = {
    "of": 'namespace="evenkeel-system",job="evenkeel-system/evenkeel"',
    "runbooks": "docs/runbooks",
}


@cache
def shipped() -> dict[str, Any]:
    """All groups, as for the sample service and for the chart's defaults."""
    text = (ROOT / "monitoring/alerts/operator.yaml").read_text()
    ours = yaml.safe_load(_filled(text, OPERATOR))["groups"]
    return {"groups": [*alert_groups(sample_context("gpu.yaml")), *ours]}


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"@{{{name}}}", value)
    return text


def rules() -> list[dict[str, Any]]:
    return [rule for group in shipped()["groups"] for rule in group["rules"]]


def scenes(name: str) -> Iterator[tuple[str, Any]]:
    for what, case in CASES[name].items():
        if what == "silent":
            for why, series in case.items():
                at = {"at": "150m"} if name in LONG else {}
                yield f"silent: {why}", {"series": series, "alerts": [], **at}
        else:
            yield what, case


def _test(name: str, case: Any) -> dict[str, Any]:
    """One test, as promtool reads it."""
    rule = next(rule for rule in rules() if rule["alert"] == name)
    is_ours = name in OF_THE_OPERATOR
    labels = OPERATOR if is_ours else SERVICE
    series = {_filled(key, labels): str(values) for key, values in case["series"].items()}
    common = dict(rule["labels"])
    runbook = rule["annotations"]["runbook_url"]
    expected = [
        {
            "exp_labels": {**common, **alert.get("labels", {})},
            "exp_annotations": {"summary": alert["summary"], "runbook_url": runbook},
        }
        for alert in case["alerts"]
    ]
    moments = [case["at"]] if "at" in case else [f"{minute}m" for minute in (6, 11, 16, 18)]
    return {
        "interval": case.get("interval", "1m"),
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [
            {"eval_time": at, "alertname": name, "exp_alerts": expected} for at in moments
        ],
    }


def test_every_alert_has_a_case_that_fires_and_one_that_stays_silent() -> None:
    assert CASES.keys() == {rule["alert"] for rule in rules()}
    for name, case in CASES.items():
        assert case["fires"]["alerts"], name
        assert case["silent"], name


@pytest.mark.parametrize(("name", "what"), [(n, what) for n in CASES for what, _ in scenes(n)])
def test_an_alert_fires_when_it_should_and_only_then(name: str, what: str, tmp_path: Path) -> None:
    own = [rule for rule in rules() if rule["alert"] == name]
    groups = {"groups": [{"name": "under-test", "rules": own}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(groups))
    case = dict(scenes(name))[what]
    plain = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": case.get("interval", "1m"),
        "tests": [_test(name, case)],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(plain))
    code, said = promtool("test", "rules", tmp_path / "test.yaml")
    assert code == 0, said


def test_prometheus_takes_the_rules_of_any_service(tmp_path: Path) -> None:
    for sample in ("simulator.yaml", "gpu.yaml"):
        path = tmp_path / sample
        path.write_text(yaml.safe_dump({"groups": alert_groups(sample_context(sample))}))
        code, said = promtool("check", "rules", path)
        assert code == 0, said


def test_every_alert_leads_to_a_page_and_every_page_is_led_to() -> None:
    named = {rule["annotations"]["runbook_url"] for rule in rules()}
    pages = {f"docs/runbooks/{path.name}" for path in (ROOT / "docs/runbooks").glob("*.md")}
    assert named == pages - {"docs/runbooks/README.md"}


def test_every_alert_says_how_bad_it_is_and_whose_it_is() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
    service = alert_groups(sample_context("gpu.yaml"))
    for rule in (rule for group in service for rule in group["rules"]):
        wanted = {"namespace": "team-ml", "service": "llama", "team": "ml"}
        assert wanted.items() <= rule["labels"].items()
