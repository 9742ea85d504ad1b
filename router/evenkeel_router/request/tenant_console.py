"""The console on the traffic port: a tenant's own clients, for an API key of the tenant.

These requests are neither counted nor logged, because an open page sends one every two seconds. Refusals are counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Self
from urllib.parse import parse_qs

from evenkeel_contract.adminstate import SERVICE_QUERY
from evenkeel_contract.consolestate import HOUR_PATH, NOW_PATH, PAGE_PATH, REQUESTS_PATH

from evenkeel_router.api.errors import Outcome, Refusal, error_body
from evenkeel_router.api.identity import Client
from evenkeel_router.api.signed_keys import CredentialRefused
from evenkeel_router.api.token_keys import KeysWanted
from evenkeel_router.ledger.totals import RequestTotals
from evenkeel_router.request.connection_holders import sender_of
from evenkeel_router.request.console_page import DATA_HEADERS, HEADERS, PageFile
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.key_sets import KeySetReader
from evenkeel_router.transport.client_request import Answer, CompleteReply, Request

_PATHS: Final = (NOW_PATH, HOUR_PATH, REQUESTS_PATH)
_READS: Final = ("GET", "HEAD")
MAX_NAME: Final = 4096
"""Most characters of a query."""


class Asked(NamedTuple):
    """The query of a request to the console; an empty text asks for all."""

    client: str = ""
    """The identity of a client."""
    request_id: str = ""
    service: str = ""
    """The service, behind a router of several."""

    @classmethod
    def of(cls, query: str) -> Self:
        """Read the query `client=…&id=…&service=…`."""
        found = parse_qs(query[:MAX_NAME], max_num_fields=8)
        return cls(*(found.get(name, [""])[0] for name in ("client", "id", SERVICE_QUERY)))


TenantAnswer = Callable[[str, str, Asked], Awaitable[bytes]]
"""Takes the path, the tenant (`namespace/tenant`), and what is asked for; returns JSON."""


class TenantConsole:
    """Answers the console's requests of the traffic port."""

    def __init__(
        self,
        intake: Intake,
        totals: RequestTotals,
        *,
        files: Mapping[str, PageFile],
        answer: TenantAnswer,
        key_sets: KeySetReader,
    ) -> None:
        self._intake = intake
        self._totals = totals
        self._files = files
        self._answer = answer
        self._key_sets = key_sets

    def serves(self, request: Request, path: str) -> bool:
        """Whether this is a request for the console."""
        return request.method in _READS and (path.startswith(PAGE_PATH) or path in _PATHS)

    async def identified(self, request: Request) -> Client:
        """The client, which must not be anonymous; raises `Refusal`."""
        directory = self._intake.directory
        claims = directory.claims_of(request.headers, request.connection.peer)
        try:
            return directory.identify_named(claims)
        except KeysWanted as wanted:
            if not await self._key_sets.read(wanted.url):
                raise
        return self._intake.directory.identify_named(claims)

    async def handle(self, request: Request, path: str) -> Answer:
        """The page, or figures of the tenant whose key the request has."""
        if (file := self._files.get(path)) is not None:
            return CompleteReply(
                request,
                status=200,
                body=file.body,
                content_type=file.content_type,
                headers=HEADERS,
            )
        try:
            if path not in _PATHS:
                raise Refusal(
                    Outcome.NOT_FOUND, "The console has no such file.", code="unknown_url"
                )
            client = await self.identified(request)
            asked = Asked.of(request.target.partition("?")[2])
            body = await self._answer(path, client.tenant_identity, asked)
        except Refusal as refusal:
            self._totals.refused[refusal.outcome] += 1
            if isinstance(refusal, CredentialRefused):
                sender = sender_of(self._intake.directory, request)
                self._intake.audit.refused(refusal, sender)
            return CompleteReply(
                request,
                status=refusal.status,
                body=error_body(refusal),
                headers=(*DATA_HEADERS, *refusal.headers),
            )
        return CompleteReply(request, status=200, body=body, headers=DATA_HEADERS)
