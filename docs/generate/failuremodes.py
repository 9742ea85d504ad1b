"""The page of failure modes, from what `make chaos-cluster` measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from docs.generate.pages import bullets, code, page, table

RESULTS: Final = Path(__file__).parents[2] / "bench" / "results" / "faults.json"
Row = Mapping[str, Any]


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of the page."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows: list[Row] = found["rows"]
    planned = [row for row in rows if row["planned"]]
    faults = [row for row in rows if not row["planned"]]
    intro = (
        "After this page you know, for each fault of a cluster, what users see, what Evenkeel does, what a person has to do, "
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
                (
                    (
                        row["name"],
                        str(row["requests"]),
                        str(row["lost"]),
                        str(row["not_begun"]),
                        _s(row["lasted_s"]),
                        _s(row["rest_s"]),
                    )
                    for row in planned
                ),
            ),
            "## Faults",
            table(
                ("fault", "requests", "lost", "not begun", "elsewhere", "rest"),
                (
                    (
                        row["name"],
                        str(row["requests"]),
                        str(row["lost"]),
                        str(row["not_begun"]),
                        str(row["elsewhere"]),
                        _s(row["rest_s"]),
                    )
                    for row in faults
                ),
            ),
            "*Elsewhere* are lost requests that were on no process which the fault ended or cut off: there must be none.",
            bullets(found["remarks"]),
            "## What names a fault",
            "An alert fires once its rule has been true for the time in the last column. The other faults end by themselves.",
            table(
                ("fault", "condition", "after", "alert", "true after", "fires after"),
                (
                    (
                        row["name"],
                        code(row["condition"]) if row["condition"] else "",
                        _s(row["condition_s"]),
                        code(row["alert"]) if row["alert"] else "",
                        _s(row["alert_s"]),
                        row["alert_for"],
                    )
                    for row in faults
                    if row["condition"] or row["alert"]
                ),
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


def _s(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s"
