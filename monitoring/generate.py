"""`make monitoring`: writes what operator and chart ship, out of alerts/ and dashboards/.

alerts/service.yaml   → the operator, which makes a PrometheusRule of it for each service
alerts/operator.yaml  → the chart
dashboards/*.yaml     → the chart, as Grafana reads them
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
    """Path → text, of everything that is shipped."""
    alerts = yaml.safe_load((HERE / "alerts/service.yaml").read_text())
    found = {
        SERVICE_ALERTS: _json(alerts),
        CHART / "alerts.yaml": (HERE / "alerts/operator.yaml").read_text(),
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
