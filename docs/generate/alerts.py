"""The page of alerts, from the rules that operator and chart ship."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from docs.generate.pages import code, entry, page

_ALERTS: Final = Path(__file__).parents[2] / "monitoring" / "alerts"
_NAMES: Final[Mapping[str, str]] = {
    "max_share_error_percent": "`slo.fairness.maxShareErrorPercent`",
    "max_lead_s": "`slo.fairness.maxLead`",
    "ttft_threshold": "`slo.ttft.threshold`",
    "ttft_objective": "`slo.ttft.objectivePercent`",
    "drained_by": "`autoscaling.drainTimeout` and five minutes",
}
"""Placeholder → the field that fills it in."""


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of the page."""
    intro = (
        "Each alert: when it fires, how serious it is, and its runbook. "
        "[Read an alert](../how-to/read-an-alert.md) has the first steps, and "
        "[Metrics, dashboards and alerts](../how-to/monitoring.md) installs them. `…` is a value of that moment."
    )
    sections = []
    for name, title in (("service", "Alerts of a service"), ("operator", "Alerts of the operator")):
        sections += [f"## {title}", *_alerts(_ALERTS / f"{name}.yaml")]
    yield "reference/alerts.md", page("Alerts", intro, *sections)


def _alerts(path: Path) -> Iterator[str]:
    rules: dict[str, list[Mapping[str, Any]]] = {}
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
        for rule in group["rules"]:
            rules.setdefault(rule["alert"], []).append(rule)
    for name, same in rules.items():
        severities = " or ".join(dict.fromkeys(rule["labels"]["severity"] for rule in same))
        waits = " or ".join(dict.fromkeys(_plain(rule["for"]) for rule in same))
        notes = same[0]["annotations"]
        runbook = notes["runbook_url"].removeprefix("@{runbooks}/")
        yield entry(
            code(name),
            _plain(notes["summary"]),
            f"Severity {severities}. It fires after {waits}. Runbook: [{runbook.removesuffix('.md')}](../runbooks/{runbook}).",
        )


def _plain(summary: str) -> str:
    """A summary with the names of fields, and `…` in place of values that a template fills in."""
    named = re.sub(r"@\{(\w+)\}", lambda found: _NAMES.get(found[1], "…"), summary)
    return re.sub(r"\{\{.*?\}\}", "…", named)
