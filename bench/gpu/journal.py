"""The raw output of a call as JSON lines, written as it comes: what stands when a call is cut off."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_SILENT: Final = ("request", "metrics")
"""Kinds of records that are not printed."""
RESULTS: Final = "results.jsonl"


@dataclass(slots=True)
class Journal:
    """Appends records to a file and prints the short ones. Each has the step and the engine that it belongs to."""

    path: Path
    context: dict[str, Any] = field(default_factory=dict)
    _began_s: float = field(default_factory=time.monotonic)

    def note(self, record: Mapping[str, Any]) -> None:
        """Write one record. The key `kind` names what it holds."""
        line = {
            "kind": record["kind"],
            "at_s": round(time.monotonic() - self._began_s, 3),
            **self.context,
            **record,
        }
        text = json.dumps(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        if record["kind"] not in _SILENT:
            print(text, flush=True)


def read_records(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """All records of these files. A line that was cut off at the end of a file is left out."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and "kind" in record:
                yield record
