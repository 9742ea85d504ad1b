"""Finds the client of a request whose token may need a key of its issuer first."""

from __future__ import annotations

from collections.abc import Callable

from evenkeel_router.api.claims import Claims
from evenkeel_router.api.identity import Client, Directory
from evenkeel_router.api.token_keys import KeysWanted
from evenkeel_router.ledger.key_sets import KeySetReader
from evenkeel_router.request.intake import Intake
from evenkeel_router.transport.client_request import Request


async def identified(
    intake: Intake,
    key_sets: KeySetReader,
    request: Request,
    identify: Callable[[Directory, Claims], Client],
) -> Client:
    """The client of a request; a token that needs a key of its issuer waits for it. Raises `Refusal`."""
    directory = intake.directory
    claims = directory.claims_of(request.headers, request.connection.peer)
    try:
        return identify(directory, claims)
    except KeysWanted as wanted:
        if not await key_sets.read(wanted.url):
            raise
    return identify(intake.directory, claims)
