"""Network namespaces: links between processes that can be slow, lossy, or cut. Needs root, `ip`, `tc` and `iptables`.

    bridge in the root namespace (10.213.x.1) ─ veth ─ namespace (10.213.x.n), one for each process

Slow is a token bucket at both ends of a link, lossy and cut are packets dropped inside the namespace: no connection
gets an error. Everything is deleted at the end, also after a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from chaos.rig.children import Place

_TOOLS: Final = ("ip", "tc", "iptables")


class Network:
    """One bridge and its namespaces. `network` makes it."""

    def __init__(self, number: int) -> None:
        self._tag = f"evk{number:02x}"
        self._subnet = f"10.213.{number}"
        self._names: list[str] = []

    def place(self) -> Place:
        """A new namespace to run a process in."""
        number = len(self._names) + 2
        name, link = f"{self._tag}n{number}", f"{self._tag}v{number}"
        self._names.append(name)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", link, "master", self._tag, "up")
        inside = ("ip", "netns", "exec", name)
        _run(*inside, "ip", "addr", "add", f"{self._subnet}.{number}/24", "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        return Place(f"{self._subnet}.{number}", inside)

    def slow(self, place: Place, *, kbit_per_s: int, loss_percent: int) -> None:
        """Limit the rate of a link in both directions, and drop a part of the packets."""
        rate = ("tbf", "rate", f"{kbit_per_s}kbit", "burst", "16kbit", "latency", "2s")
        for *tc, device in self._ends(place):
            _run(*tc, "qdisc", "replace", "dev", device, "root", *rate)
        chance = ("-m", "statistic", "--mode", "random", "--probability", f"{loss_percent / 100}")
        self._drop(place, *chance)

    def cut(self, place: Place) -> None:
        """Drop all packets; no process gets an error."""
        self._drop(place)

    def mend(self, place: Place) -> None:
        """Restore the link."""
        _run(*place.prefix, "iptables", "-F")
        for *tc, device in self._ends(place):
            # Without a limit there is no queue to delete.
            subprocess.run(
                [*tc, "qdisc", "del", "dev", device, "root"], check=False, capture_output=True
            )

    def _drop(self, place: Place, *which: str) -> None:
        for chain in ("INPUT", "OUTPUT"):
            _run(*place.prefix, "iptables", "-A", chain, *which, "-j", "DROP")

    def open(self) -> None:
        _run("ip", "link", "add", self._tag, "type", "bridge")
        _run("ip", "addr", "add", f"{self._subnet}.1/24", "dev", self._tag)
        _run("ip", "link", "set", self._tag, "up")

    def close(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._tag], check=False, capture_output=True)

    def _ends(self, place: Place) -> tuple[tuple[str, ...], tuple[str, ...]]:
        number = place.host.rpartition(".")[2]
        return (*place.prefix, "tc", "eth0"), ("tc", f"{self._tag}v{number}")


@contextmanager
def network() -> Iterator[Network]:
    """An empty network; skips the test if the machine cannot create one."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.getuid() != 0 or missing:
        pytest.skip(f"network namespaces need root and {', '.join(_TOOLS)}")
    made = Network(os.getpid() % 250 + 1)
    try:
        made.open()
    except subprocess.CalledProcessError as error:
        made.close()
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        yield made
    finally:
        made.close()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
