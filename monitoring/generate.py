"""`make monitoring`: writes the files that operator and chart ship from alerts/ and dashboards/.

alerts/service.yaml   → operator; it makes a PrometheusRule for each service
alerts/operator.yaml  → chart
scrape.yaml           → chart
dashboards/*.yaml     → chart, in Grafana's format
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from monitoring.grafana import dashboard

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
SERVICE_ALERTS: Final = ROOT / "operator/evenkeel_operator/manifests/alerts.json"
CHART: Final = ROOT / "charts/evenkeel/files/monitoring"


def files() -> dict[Path, str]:
    """Path → text of all generated files."""
    alerts = yaml.safe_load((HERE / "alerts/service.yaml").read_text())
    found = {
        SERVICE_ALERTS: _json(alerts),
        CHART / "alerts.yaml": (HERE / "alerts/operator.yaml").read_text(),
        CHART / "scrape.yaml": (HERE / "scrape.yaml").read_text(),
    }
    for path in sorted((HERE / "dashboards").glob("*.yaml")):
        name = path.stem
        plain = dashboard(f"evenkeel-{name}", yaml.safe_load(path.read_text()))
        found[CHART / "dashboards" / f"{name}.json"] = _json(plain)
    return found


def _json(plain: Any) -> str:
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
