"""Generates a dashboard in Grafana's format from a short definition.

    {title, description, rows: [{title, panels: [{title, unit?, kind?, width?, signed?, description?,
                                                 queries: {legend: PromQL}}]}]}

In queries `$of` stands for the labels of the chosen service. This module sets all properties that a panel does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

OF: Final = 'namespace="$namespace",evenkeel_dev_service="$service"'
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
_HEIGHT: Final = 8
_SCHEMA: Final = 39  # Grafana 10 and newer


def dashboard(uid: str, source: Mapping[str, Any]) -> dict[str, Any]:
    """Build the dashboard."""
    return {
        "uid": uid,
        "title": source["title"],
        "description": source["description"],
        "tags": ["evenkeel"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": list(_panels(source["rows"])),
    }


def _variables() -> list[dict[str, Any]]:
    # Every router always exports this series.
    series = "evenkeel_router_draining"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        _choice("namespace", f"label_values({series}, namespace)"),
        _choice(
            "service", f'label_values({series}{{namespace="$namespace"}}, evenkeel_dev_service)'
        ),
    ]


def _choice(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,  # when the time range changes
        "sort": 1,
    }


def _panels(rows: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    number, y = 1, 0
    for row in rows:
        yield {
            "id": number,
            "type": "row",
            "title": row["title"],
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        }
        number, y, x = number + 1, y + 1, 0
        for panel in row["panels"]:
            width = panel.get("width", _WIDTH // 2)
            if x + width > _WIDTH:
                x, y = 0, y + _HEIGHT
            yield _panel(number, panel) | {"gridPos": {"x": x, "y": y, "w": width, "h": _HEIGHT}}
            number, x = number + 1, x + width
        y += _HEIGHT


def _panel(number: int, panel: Mapping[str, Any]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel.get("description", ""),
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.get("unit", "short")}
            | ({} if panel.get("signed") else {"min": 0}),
            "overrides": [],
        },
        "options": _OPTIONS[kind],
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.replace("$of", OF),
                "legendFormat": legend,
            }
            for index, (legend, query) in enumerate(panel["queries"].items())
        ],
    }


_OPTIONS: Final[Mapping[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"},
}
