"""The page of failure modes, from what `make chaos-cluster` measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from docs.generate.pages import bullets, code, page, table

RESULTS: Final = Path(__file__).parents[2] / "bench" / "results" / "faults.json"
Row = Mapping[str, Any]
_LOST: Final = ("requests", "lost", "not_begun")
_NAMED: Final = ("name", "condition", "condition_s", "alert", "alert_s", "alert_for")


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of the page."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows: list[Row] = found["rows"]
    planned = [row for row in rows if row["planned"]]
    faults = [row for row in rows if not row["planned"]]
    intro = (
        "For each fault of a cluster: what users see, what Evenkeel does, what a person has to do, "
        "and what was lost in a rehearsal. [How a request fails](failures.md) has the rules behind it."
    )
    measured = (
        f"`{found['command']}` measured this on {found['date']} (commit {found['commit']}): a cluster of two nodes on one "
        "machine, three simulated replicas, two routers, at least 23 streams and 9 other requests at a time from OpenAI's Python "
        "client without retries. Each request is accounted for. *Rest* is the time from the end of the fault until every "
        "part runs as its spec says. *Not begun* are lost requests without a first token, which stock clients repeat."
    )
    yield (
        "explanation/failure-modes.md",
        page(
            "Faults of a cluster",
            intro,
            measured,
            "## Planned changes",
            table(
                ("change", "requests", "lost", "not begun", "lasted", "rest"),
                _cells(planned, "name", *_LOST, "lasted_s", "rest_s"),
            ),
            "## Faults",
            table(
                ("fault", "requests", "lost", "not begun", "elsewhere", "rest"),
                _cells(faults, "name", *_LOST, "elsewhere", "rest_s"),
            ),
            "*Elsewhere* are lost requests that were on no process which the fault ended or cut off: there must be none.",
            bullets(found["remarks"]),
            "## What names a fault",
            "An alert fires once its rule has been true for the time in the last column. The other faults end by themselves.",
            table(
                ("fault", "condition", "after", "alert", "true after", "fires after"),
                _cells((row for row in faults if row["condition"] or row["alert"]), *_NAMED),
            ),
            "## Who does what",
            "Where no administrator is named, no action is needed.",
            bullets(
                f"**{row['name']}.** Users: {row['users']}. Evenkeel: {row['system']}."
                + (f" An administrator {row['human']}." if row["human"] != "nothing" else "")
                for row in rows
            ),
        ),
    )


def _cells(rows: Iterable[Row], *columns: str) -> Iterator[tuple[str, ...]]:
    return (tuple(_cell(row[column], column) for column in columns) for row in rows)


def _cell(value: Any, column: str) -> str:
    """Columns of seconds end in `_s`; a condition or an alert is a name in the code."""
    if column.endswith("_s"):
        return "" if value is None else f"{value:.0f} s"
    if column in ("condition", "alert"):
        return code(value) if value else ""
    return str(value)
