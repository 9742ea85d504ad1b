"""Addresses to listen on. Pure: callers open the sockets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ALL_IPV4: Final = "0.0.0.0"
ALL: Final = "::"
"""All addresses of both families."""


def addresses(host: str) -> tuple[str, ...]:
    """The addresses that stand for a host. asyncio binds `::` to IPv6 alone, so IPv4 needs a socket of its own."""
    return (ALL_IPV4, ALL) if host == ALL else (host,)


def all_addresses_for(own: Iterable[str]) -> str:
    """What a process listens on that has these addresses: IPv6 only if it has an address of it, since a node may lack it."""
    return ALL if any(":" in address for address in own) else ALL_IPV4
