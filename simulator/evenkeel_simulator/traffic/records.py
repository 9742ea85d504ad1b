"""The records of a run, one per request, and their CSV form (`requests.csv`)."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Record(NamedTuple):
    """One request, from arrival to end. Times are seconds of virtual time since the run began. Tuples are fast to create."""

    id: str
    program: str
    client: str
    replica: int
    """Slot of the replica that served it; -1 if none took it."""
    status: str
    """`finished`, `rejected` (by the policy or a limit), `refused` (it would not fit an empty engine), `failed` (by the service), or
    `unfinished` (the run ended first)."""
    arrival_s: float
    admitted_s: float | None
    first_token_s: float | None
    finished_s: float | None
    input_tokens: int
    cached_tokens: int
    """Input tokens found in the cache."""
    extend_tokens: int
    """Input tokens computed, recomputation after retractions included."""
    output_tokens: int
    retractions: int
    qoe: float | None = None
    """Quality of experience, from 0 to 1 (`evenkeel_fairshare.qoe`); None if it was not measured or not served."""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def latency_s(self) -> float | None:
        """Seconds from the arrival to the end; None if the request did not finish."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s

    @property
    def itl_s(self) -> float | None:
        """Inter-token latency: the mean time between two of its tokens; None if it has fewer."""
        if self.first_token_s is None or self.finished_s is None or self.output_tokens < 2:
            return None
        return (self.finished_s - self.first_token_s) / (self.output_tokens - 1)


def write_csv(records: Iterable[Record], path: Path) -> None:
    """Write `requests.csv`: a column per field, empty where a value is missing."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Record._fields)
        for record in records:
            writer.writerow(map(_cell, record))


def _cell(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value
