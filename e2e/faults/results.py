"""What the scenes measured, and the file that the page about failure modes is made of."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from e2e.rig.layout import REPOSITORY

RESULTS: Final = REPOSITORY / "bench" / "results" / "faults.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One scene. Times are in seconds."""

    name: str
    planned: bool
    lasted_s: float
    requests: int
    """Requests that ended from the begin of the fault until rest."""
    lost: int
    not_begun: int
    """Of those lost: without a first token. Stock clients repeat them."""
    elsewhere: int
    """Of those lost: not on a process that the fault ended."""
    causes: dict[str, int]
    condition: str
    condition_s: float | None
    """From the fault until a condition names it."""
    alert: str
    alert_s: float | None
    """From the fault until the rule of the alert is true."""
    alert_for: str
    """How long it has to be true before it fires."""
    rest_s: float
    """From the end of the fault until rest."""
    last_loss_s: float
    """From the begin of the fault until the last lost request."""
    users: str
    system: str
    human: str


def written(row: Row, path: Path = RESULTS) -> None:
    """Replace the row of the same name, and keep the others."""
    before = json.loads(path.read_text()) if path.exists() else {"rows": [], "remarks": []}
    found = {one["name"]: one for one in before["rows"]} | {row.name: asdict(row)}
    git = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    plain = {
        "command": "make chaos-cluster",
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "remarks": before["remarks"],  # written by hand, about single rows
        "rows": list(found.values()),
    }
    path.write_text(json.dumps(plain, indent=1) + "\n")
