"""Cross-origin resource sharing: which web pages may use the router, by the WHATWG Fetch standard, section 3.2.

Keys travel in headers, never in cookies, so credentials are not allowed. A request of another origin is served like any
other; its browser does not let the page read the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evenkeel_contract.names import REMOVED_HEADER, REQUEST_ID_HEADER

_ANY: Final = "*"
_EXPOSED: Final = (
    (
        "access-control-expose-headers",
        f"{REQUEST_ID_HEADER}, {REMOVED_HEADER}, retry-after, www-authenticate",
    ),
)
_PREFLIGHT: Final = (
    ("access-control-allow-methods", "GET, POST, PUT, DELETE"),
    # The wildcard does not include Authorization. Clients of OpenAI send many headers of their own.
    ("access-control-allow-headers", "authorization, *"),
    ("access-control-max-age", "7200"),  # Chromium's upper bound
)
Headers = tuple[tuple[str, str], ...]


class Cors:
    """The origins that a router allows."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, origin: str) -> Headers:
        """The headers of an answer to a page of `origin`."""
        if _ANY in self._origins:
            return (("access-control-allow-origin", _ANY), *_EXPOSED)
        varies = ("vary", "origin")
        if origin not in self._origins:
            return (varies,)
        return (("access-control-allow-origin", origin), varies, *_EXPOSED)

    def preflight(self, origin: str) -> Headers:
        """The headers of the answer to a browser that asks before it sends a page's request."""
        headers = self.headers(origin)
        return (*headers, *_PREFLIGHT) if len(headers) > 1 else headers
