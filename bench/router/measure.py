"""The cost of a process and its children, from `/proc`: CPU seconds and peak resident memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """The process and all its living descendants."""
    found = [pid]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def cpu_s(pid: int) -> float:
    """User and system seconds of all threads, of the descendants and of those that they reaped.

    To the nanosecond, but for the reaped ones, whose time is known in ticks.
    """
    total_s = 0.0
    for one in tree(pid):
        total_s += time.clock_gettime(_cpu_clock(one))
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total_s += sum(int(field) for field in fields[13:15]) / _TICKS_PER_S  # cutime cstime
    return total_s


def _cpu_clock(pid: int) -> int:
    """The clock of a process' CPU time, as `clock_getcpuclockid` names it on Linux."""
    return ~pid << 3 | 2


def peak_rss_bytes(pid: int) -> int:
    """Sum of the peaks of resident memory; pages that processes share count in each."""
    total = 0
    for one in tree(pid):
        for line in Path(f"/proc/{one}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) * 1024
    return total


def quantile(values: list[float], q: float) -> float:
    """The q-quantile by nearest rank; nan of nothing."""
    if not values:
        return float("nan")
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]
