"""TCP's own watch over peers that vanish without a word: a machine without power, a dropped entry in a firewall (RFC 9293, section 3.8.4).

Without it a connection on which nothing is sent stays open without an end, and one with unsent data for about 15 minutes.
"""

from __future__ import annotations

import os
import socket
from typing import Final

IDLE_S: Final = 30
"""Silence after which the kernel asks the peer."""
INTERVAL_S: Final = 10
QUESTIONS: Final = 3
"""Unanswered questions after which the connection is closed."""
UNSENT_S: Final = IDLE_S + INTERVAL_S * QUESTIONS
"""Time in which data must be acknowledged. From Linux 5.11 on it is also the longest time that a peer may leave its window closed."""


def watch_peer(file: int) -> None:
    """Watch the peer of a TCP socket, or of all connections that a listening one accepts."""
    with socket.socket(fileno=os.dup(file)) as own:
        if own.family not in (socket.AF_INET, socket.AF_INET6):
            return
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, IDLE_S),
            (socket.TCP_KEEPINTVL, INTERVAL_S),
            (socket.TCP_KEEPCNT, QUESTIONS),
            (socket.TCP_USER_TIMEOUT, UNSENT_S * 1000),
        ):
            own.setsockopt(socket.IPPROTO_TCP, option, value)
