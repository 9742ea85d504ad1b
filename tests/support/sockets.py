"""Folders for UNIX sockets."""

from __future__ import annotations

from tempfile import TemporaryDirectory


def socket_folder() -> TemporaryDirectory[str]:
    """A folder with a short path: that of a socket has 107 bytes at most, and a test's own folder may be as long as it likes."""
    return TemporaryDirectory(prefix="evenkeel-", dir="/tmp")
