"""Options that `evenkeel simulate` and `evenkeel replay` share: a trace, its clients and its speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from evenkeel_contract.queueorder import IsolationSetting
from evenkeel_simulator.traffic.traces import hash_clients, named_clients, programs, read_trace
from evenkeel_simulator.traffic.workload import Program


class UsageError(ValueError):
    """Invalid options, or options that exclude each other."""


def option(text: str) -> Any:
    """An option whose help does not show its default."""
    return typer.Option(help=text, show_default=False)


Speed = Annotated[
    float, typer.Option(help="Speed of arrivals; 2: the trace arrives in half the time.")
]


def isolation_share(text: str) -> float | None:
    """The value of `--isolation`, None for Off; raises `UsageError`."""
    try:
        return IsolationSetting.from_plain(text).share
    except ValueError as error:
        raise UsageError(f"--isolation {error}") from None


def read_programs(
    trace: Path, *, clients: str | None, speed: float, seed: int, limit: int = 0
) -> list[Program]:
    """The first `limit` requests of a trace (0: all), by client; raises `UsageError`, `TraceError`."""
    if not 0 < speed < float("inf"):
        raise UsageError(f"--speed is {speed}, must be above 0")
    client_of = named_clients(trace)
    if clients is not None:
        kind, _, number = clients.partition(":")
        if kind != "hash" or not number.isdecimal() or int(number) < 1:
            raise UsageError(f"--clients is {clients!r}, must be hash:N with N at least 1")
        client_of = hash_clients(int(number), seed=seed)
    rows = read_trace(trace)
    return programs(rows[:limit] if limit else rows, client_of, speed=speed)
