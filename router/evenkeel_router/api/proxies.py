"""Trusted proxies, and the addresses of senders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

_MAX_REMEMBERED: Final = 10_000
MAX_ADDRESS: Final = 64
"""Most characters of an address in `X-Forwarded-For`."""


class Proxies:
    """The networks whose identity headers are trusted."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [ip_network(network, strict=False) for network in networks]
        self._known: dict[str, bool] = {}

    def trusts(self, peer: str) -> bool:
        """Whether the address belongs to one of them. No address (a Unix socket) is not trusted."""
        known = self._known.get(peer)
        if known is None:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            known = self._known[peer] = self._is_inside(peer)
        return known

    def _is_inside(self, peer: str) -> bool:
        try:
            address = ip_address(peer.partition("%")[0])  # without an IPv6 zone
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped  # an IPv4 address on a dual-stack socket
        return any(address in network for network in self._networks)


def without_port(address: str) -> str:
    """The address of `1.2.3.4:56` or `[2001:db8::1]:56`, as some proxies write them."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


@lru_cache(4096)
def network_of(address: str) -> str:
    """The address itself, or the first 64 bits of an IPv6 address: one host may use all addresses that begin so. Without a slash."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address.replace("/", "")
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((found, 64), strict=False).network_address)
    return str(found)
