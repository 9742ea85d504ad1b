"""Whether a registry answers."""

from __future__ import annotations

import httpx


def answers(address: str) -> bool:
    """Whether a registry without TLS serves at `address` (host:port)."""
    try:
        return httpx.get(f"http://{address}/v2/").is_success
    except httpx.TransportError:
        return False
