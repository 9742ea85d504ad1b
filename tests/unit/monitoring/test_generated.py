"""What operator and chart ship is what monitoring/ says now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from monitoring.generate import CHART, HERE, files
from tests.support.promtool import promtool


def test_what_is_shipped_is_what_the_sources_say_now() -> None:
    for path, text in files().items():
        assert path.read_text() == text, f"{path.name}: run `make monitoring`"
    shipped = {path for path in CHART.rglob("*") if path.is_file()}
    assert shipped <= files().keys()


@pytest.mark.parametrize("path", sorted((HERE / "dashboards").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_dashboard_is_whole(path: Path) -> None:
    made = json.loads(files()[CHART / "dashboards" / f"{path.stem}.json"])
    source = yaml.safe_load(path.read_text())
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert len(panels) == sum(len(row["panels"]) for row in source["rows"])
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    for panel in panels:
        assert panel["targets"], panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    taken = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in made["panels"]]
    assert len(set(taken)) == len(taken)


def test_every_query_of_a_panel_is_promql(tmp_path: Path) -> None:
    boards = [json.loads(text) for path, text in files().items() if path.suffix == ".json"]
    queries = [
        target["expr"]
        for board in boards
        for panel in board.get("panels", ())
        for target in panel.get("targets", ())
    ]
    assert len(queries) > 50
    rules = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    code, said = promtool("check", "rules", path)
    assert code == 0, said
