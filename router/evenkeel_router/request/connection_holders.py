"""Who holds which connection of the traffic port, as far as its requests show (`transport/connection_shares.py`).

| connection                                | party                            | name in it             |
|-------------------------------------------|----------------------------------|------------------------|
| new, from a trusted proxy                 | all trusted proxies              | the proxy's address    |
| new, from another address                 | all without a valid key          | its address            |
| last request without a valid identity     | all without a valid key          | the sender's address   |
| last request of an anonymous client       | the tenant of anonymous requests | the sender's address   |
| last request of another client            | its tenant                       | the client             |

Behind a trusted proxy the sender's address is the one that `X-Forwarded-For` names.
"""

from __future__ import annotations

import logging
from typing import Final

from multidict import istr

from evenkeel_router.api.claims import Claims
from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.identity import Client, Directory
from evenkeel_router.settings import Settings
from evenkeel_router.transport.client_request import Request
from evenkeel_router.transport.connection_shares import NO_KEY, Closing, ConnectionShares, party_of
from evenkeel_router.transport.server import connections_for, within_files

_log = logging.getLogger(__name__)
_FORWARDED_FOR: Final = istr("X-Forwarded-For")
PROXIES: Final = "proxies"
"""The party of trusted proxies' new connections. A tenant's name has a slash."""


def shares_of(settings: Settings) -> ConnectionShares:
    """The connections of the traffic port. Its bound follows `limits.maxConcurrent`."""
    return ConnectionShares(
        lambda: within_files(connections_for(settings.config.limits.max_concurrent)), report
    )


def of_new(directory: Directory, peer: str) -> str:
    """Holder of a new connection."""
    return f"{PROXIES if directory.trusts(peer) else NO_KEY}/{directory.sender_of(peer, ())}"


def identified(directory: Directory, request: Request, claims: Claims) -> Client:
    """The client of a request, which holds its connection from now on; raises `Refusal`."""
    try:
        client = directory.identify(claims)
    except Refusal:
        _by_sender(directory, request, NO_KEY)
        raise
    if client is directory.anonymous:
        _by_sender(directory, request, client.tenant_identity)
    else:
        request.connection.holder = client.identity
    return client


def _by_sender(directory: Directory, request: Request, party: str) -> None:
    """The request names no client: its sender's address holds its connection."""
    request.connection.holder = f"{party}/{sender_of(directory, request)}"


def sender_of(directory: Directory, request: Request) -> str:
    """The address that a request was sent from."""
    forwarded = request.headers.getall(_FORWARDED_FOR, ())
    return directory.sender_of(request.connection.peer, forwarded)


def report(holder: str, why: Closing, count: int) -> None:
    """Log the 1st, 2nd, 4th, 8th … connection of a party that was closed for the same reason."""
    if count & (count - 1) == 0:
        who = holder if party_of(holder) else f"address {holder[1:]}, without a valid key"
        _log.warning(
            "closed a connection of %s: %s. %s (closed so far for this reason: %d of its tenant; "
            "evenkeel_router_connections_closed_total counts)",
            who,
            why.value.replace("_", " "),
            _CAUSES[why],
            count,
        )


_CAUSES: Final = {
    Closing.FULL: "Too many connections are open, and most of them belong to this tenant or address",
    Closing.SLOW_HEAD: "The head of a request did not arrive in time",
    Closing.NOT_READING: "The client does not read its answer",
}
