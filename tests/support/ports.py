"""Free ports for processes that must know one another's before they start."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator

FIRST, LAST = 16000, 32000
"""Below the ports that the system gives to sockets without one, so that no other socket takes one in between."""


def _numbers() -> Iterator[int]:
    """Round and round; test processes that run at the same time begin far apart."""
    start = (os.getpid() * 997) % (LAST - FIRST)
    return itertools.cycle([FIRST + (start + n) % (LAST - FIRST) for n in range(LAST - FIRST)])


_CANDIDATES = _numbers()


def free_ports(count: int) -> list[int]:
    """All different; each could be bound just now."""
    return list(itertools.islice(filter(_free, _CANDIDATES), count))


def consecutive_ports(count: int) -> int:
    """The first of as many free ports in a row, as `up --port` uses them."""
    while True:
        ports = free_ports(count)
        if ports[-1] - ports[0] == count - 1:
            return ports[0]


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
