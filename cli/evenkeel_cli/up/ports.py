"""Finds free ports of this machine, and names the process that uses a taken one."""

from __future__ import annotations

import random
import socket
from typing import Final

import psutil
from evenkeel_contract.routerconfig import ListenConfig

from evenkeel_cli.up.errors import FleetError

LAST: Final = 65_535
_RANGE: Final = (20_000, 32_000)
"""Ports to choose from. They are below those of outgoing connections: one of those could take a port between its
choice and its use."""
_chosen: set[int] = set()
"""Ports that this process chose. They may not be in use yet, so they are never chosen again."""


def free_port(host: str) -> int:
    """A port that was free at this moment. Another process may take it before its use."""
    candidates = random.sample(range(*_RANGE), 200)
    for port in candidates:
        if port not in _chosen and is_free(host, port):
            _chosen.add(port)
            return port
    raise FleetError(f"no port from {_RANGE[0]} to {_RANGE[1]} on {host} is free")


def is_free(host: str, port: int) -> bool:
    """Whether a server can listen on the port now."""
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True


def claim(listen: ListenConfig) -> ListenConfig:
    """`listen` with free ports in place of 0; raises `FleetError` for a port that is in use."""
    asked = (listen.traffic_port, listen.probe_port, listen.admin_port)
    for port in asked:
        if port and asked.count(port) > 1:
            raise FleetError(
                f"port {port} is given twice; traffic, probes and admin each need their own port"
            )
        if port and not is_free(listen.host, port):
            raise FleetError(
                f"port {port} on {listen.host} is taken{_by_whom(port)}; "
                f"stop that process or choose another port with --port"
            )
    traffic, probe, admin = (port or free_port(listen.host) for port in asked)
    return ListenConfig(host=listen.host, traffic_port=traffic, probe_port=probe, admin_port=admin)


def _by_whom(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            if listening and connection.laddr and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:  # another user's process, or a system that does not name it
        pass
    return ""
