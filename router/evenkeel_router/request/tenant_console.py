"""The console on the traffic port: a tenant's own clients, for an API key of the tenant.

These requests are neither counted nor logged, because an open page sends one every two seconds. Refusals are counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, Self
from urllib.parse import parse_qs

from evenkeel_contract.adminstate import SERVICE_QUERY
from evenkeel_contract.consolestate import (
    HOUR_PATH,
    MODEL_QUERY,
    NOW_PATH,
    PAGE_PATH,
    REQUESTS_PATH,
)

from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.identity import Client, Directory
from evenkeel_router.ledger.key_sets import KeySetReader
from evenkeel_router.ledger.totals import RequestTotals
from evenkeel_router.request.console_page import DATA_HEADERS, HEADERS, PageFile
from evenkeel_router.request.identification import identified
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.refusals import refused_aside
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
    model: str = ""
    """The service, by the name of its model."""

    @classmethod
    def of(cls, query: str) -> Self:
        """Read the query `client=…&id=…&service=…&model=…`."""
        found = parse_qs(query[:MAX_NAME], max_num_fields=8)
        names = ("client", "id", SERVICE_QUERY, MODEL_QUERY)
        return cls(*(found.get(name, [""])[0] for name in names))

    @property
    def is_shared(self) -> bool:
        """Whether open pages ask the same: about no single client or request."""
        return not (self.client or self.request_id)


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
        return await identified(self._intake, self._key_sets, request, Directory.identify_named)

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
            return refused_aside(self._intake, self._totals, request, refusal)
        return CompleteReply(request, status=200, body=body, headers=DATA_HEADERS)
