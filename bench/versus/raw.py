"""The raw data of a head to head, as files: what each client and each engine saw, and the facts of the run."""

from __future__ import annotations

import csv
import gzip
import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bench.versus.clients import Seen
from bench.versus.figures import Sample

FACTS: Final = "run.json"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says of its run."""

    command: str
    commit: str
    date: str
    seconds: float
    litellm: str
    """The version of LiteLLM."""
    cores: int
    nice: int
    """Niceness of the whole command; below 0 it goes before other work of the machine."""
    load_before: float
    load_after: float
    late_p99_s: Mapping[str, float]
    """Workload → by how much this program's timers were late, 99th percentile, seconds."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One contender under one workload."""

    seen: Sequence[Seen]
    samples: Sequence[Sample]


Trials = Mapping[str, Mapping[str, Trial]]
"""Workload → contender → trial."""


def write(folder: Path, facts: Facts, trials: Trials) -> None:
    """Two compressed tables for each workload, and the facts."""
    folder.mkdir(parents=True, exist_ok=True)
    for case, found in trials.items():
        requests = [(name, *one) for name, trial in found.items() for one in trial.seen]
        _write(folder / f"{case}.csv.gz", ("contender", *Seen._fields), requests)
        samples = [
            (name, f"{one.at_s:.2f}", *one.held, f"{one.late_s:.3f}")
            for name, trial in found.items()
            for one in trial.samples
        ]
        engines = max((len(one) - 3 for one in samples), default=0)
        held = [f"held_{number}" for number in range(engines)]
        _write(folder / f"{case}-engines.csv.gz", ("contender", "at_s", *held, "late_s"), samples)
    (folder / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")


def read(folder: Path) -> tuple[Facts, Trials]:
    """What `write` wrote; raises `OSError` where nothing was written."""
    facts = msgspec.json.decode((folder / FACTS).read_bytes(), type=Facts)
    trials: dict[str, dict[str, Trial]] = {}
    for path in sorted(folder.glob("*-engines.csv.gz")):
        case = path.name.removesuffix("-engines.csv.gz")
        seen: defaultdict[str, list[Seen]] = defaultdict(list)
        for name, *cells in _rows(folder / f"{case}.csv.gz"):
            seen[name].append(_seen(cells))
        samples: defaultdict[str, list[Sample]] = defaultdict(list)
        for name, at_s, *held, late_s in _rows(path):
            samples[name].append(Sample(float(at_s), tuple(map(int, held)), float(late_s)))
        trials[case] = {name: Trial(found, samples[name]) for name, found in seen.items()}
    return facts, trials


def samples_of(path: Path, began_s: float) -> list[Sample]:
    """The record of an engines' process (`bench.versus.engines`), in seconds since the run began."""
    found = []
    for line in path.read_text().splitlines():
        at_s, *loads, late_s = line.split()
        counts = list(map(int, loads))
        held = tuple(run + wait for run, wait in zip(counts[::2], counts[1::2], strict=True))
        found.append(Sample(float(at_s) - began_s, held, float(late_s)))
    return [one for one in found if one.at_s >= 0]


def _seen(cells: Sequence[str]) -> Seen:
    name, team, sent_s, first_s, ended_s, input_, cached, output, refusals, error = cells
    return Seen(
        name,
        team,
        float(sent_s),
        float(first_s) if first_s else None,
        float(ended_s) if ended_s else None,
        int(input_),
        int(cached),
        int(output),
        int(refusals),
        error,
    )


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def _rows(path: Path) -> Iterable[list[str]]:
    rows = csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode()))
    next(rows)
    return rows
