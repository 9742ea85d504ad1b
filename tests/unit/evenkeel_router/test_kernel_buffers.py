"""What the kernel may hold of a connection."""

from __future__ import annotations

import socket

import pytest
from evenkeel_router.transport.kernel_buffers import UNSENT_BYTES, bound_unsent


def unsent_bytes(of: socket.socket) -> int:
    return of.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_accepted_connections_hold_little_that_is_not_sent(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        bound_unsent(server.fileno())
        with socket.create_connection(server.getsockname()[:2]), server.accept()[0] as accepted:
            assert unsent_bytes(server) == unsent_bytes(accepted) == UNSENT_BYTES


def test_a_socket_of_another_kind_is_left_alone() -> None:
    one, other = socket.socketpair()
    with one, other:
        bound_unsent(one.fileno())
        one.sendall(b"still open")
        assert other.recv(10) == b"still open"
