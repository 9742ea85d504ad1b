"""What every request of the traffic port passes, whatever serves it: `handle`, errors as answers, and one end.

Refusals and faults become answers here. Every request ends in `finish`, once, and is counted and logged there. Checks of
`/health` and of browsers (CORS) and requests to the console and about keys are neither counted nor logged.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from evenkeel_router.api.endpoints import ENDPOINTS, MODELS, Endpoint, is_stored_response
from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.identity import Client
from evenkeel_router.api.responses import not_stored
from evenkeel_router.api.token_keys import KeysWanted
from evenkeel_router.ledger.key_sets import KeySetReader
from evenkeel_router.ledger.totals import ClientTotals, RequestTotals
from evenkeel_router.request import own_answers
from evenkeel_router.request.connection_holders import identified
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.refusals import failed, refused
from evenkeel_router.request.request_state import (
    REQUEST_ID,
    RequestIds,
    RequestState,
    RequestTracer,
)
from evenkeel_router.transport.client_request import (
    INVALID_BODY,
    Answer,
    Aside,
    Request,
)
from evenkeel_router.transport.request_head import HttpSyntaxError

_log = logging.getLogger(__name__)
_OTHER_PATH: Final = "other"  # a path that a client made up never becomes a label or a log field
SPOOFED = "identity-header"
"""The name in `stripped` of an identity header from a peer that may not send one."""


RequestSink: TypeAlias = Callable[[RequestState, float], None]
"""Takes a request that is over, and its duration in seconds."""


class Front(ABC):
    """Answers every request of the traffic port."""

    def __init__(
        self,
        intake: Intake,
        totals: RequestTotals,
        *,
        asides: Sequence[Aside],
        key_sets: KeySetReader,
        tracer: RequestTracer,
        sinks: Sequence[RequestSink],
    ) -> None:
        """`asides` answer requests that are neither counted nor logged. `sinks` take every other request that is over; more of them may
        be added later."""
        self._intake = intake
        self._totals = totals
        self._asides = asides
        self._key_sets = key_sets
        self._tracer = tracer
        self._sinks = sinks
        self._now = asyncio.get_running_loop().time
        self._ids = RequestIds()

    @abstractmethod
    async def infer(
        self, request_state: RequestState, request: Request, endpoint: Endpoint
    ) -> Answer:
        """Serve one request; raises `Refusal`, and `CancelledError` when its client is gone."""

    @abstractmethod
    def _models(self, name: str, client: Client) -> bytes:
        """The list of models for a client, or one of them; raises `Refusal`."""

    @abstractmethod
    def _in_sync(self) -> bool:
        """Whether the replicas are known."""

    @abstractmethod
    def finish(self, request_state: RequestState) -> None:
        """Count and log a request that is over."""

    async def handle(self, request: Request) -> Answer:
        """One request."""
        path = request.path
        endpoint = ENDPOINTS.get(path)
        if endpoint is None:
            request.target, path = own_answers.known_target(request.target)
            endpoint = ENDPOINTS.get(path)
            if endpoint is None and (own := await self._uncounted(request, path)) is not None:
                return own
        request_state = RequestState(
            self._ids.of(request),
            path if endpoint is not None or path == MODELS else _OTHER_PATH,
            self._now(),
            self._ids.new() if REQUEST_ID in request.headers else "",
        )
        if (
            self._intake.cors is not None
            and (preflight := own_answers.cross_origin(request_state, request, self._intake.cors))
            is not None
        ):
            return preflight
        if (spans := self._tracer.spans) is not None:
            request_state.trace = spans.begin(request_state.path, request.method, request.headers)
        try:
            if self._intake.draining:
                self._intake.let_in(request)
            if endpoint is not None and request.method in endpoint.api.methods:
                return await self.infer(request_state, request, endpoint)
            return self._answered_here(request_state, request, path)
        except Refusal as refusal:
            return await self._after_refusal(request_state, request, endpoint, path, refusal)
        except asyncio.CancelledError:
            request_state.client_left()
            raise
        except Exception as fault:  # noqa: BLE001 - logged and counted in `failed`
            return failed(self._totals, request_state, request, fault)
        finally:
            self.finish(request_state)

    async def _after_refusal(  # noqa: PLR0917 - the state of one request, called once
        self,
        request_state: RequestState,
        request: Request,
        endpoint: Endpoint | None,
        path: str,
        refusal: Refusal,
    ) -> Answer:
        """Answer a refused request. A token that needs a key of its issuer gets another try once that was read: nothing of the body was."""
        try:
            if isinstance(refusal, KeysWanted) and await self._key_sets.read(refusal.url):
                if endpoint is not None and request.method in endpoint.api.methods:
                    return await self.infer(request_state, request, endpoint)
                return self._answered_here(request_state, request, path)
        except Refusal as again:
            refusal = again
        except asyncio.CancelledError:
            request_state.client_left()
            raise
        except Exception as fault:  # noqa: BLE001 - logged and counted in `failed`
            return failed(self._totals, request_state, request, fault)
        return refused(
            self._intake, request_state, request, refusal, close=refusal.code == INVALID_BODY
        )

    def _answered_here(self, request_state: RequestState, request: Request, path: str) -> Answer:
        """The answer to a request that no replica gets; raises `Refusal`."""
        if request.method == "OPTIONS":
            return own_answers.options(request_state, request, path)
        if is_stored_response(request.method, path):
            self.identify(request_state, request)
            raise not_stored()
        name = own_answers.asked_model(request, path)
        client, _ = self.identify(request_state, request)
        models = self._models(name, client)
        return own_answers.own(request_state, request, models, close=self._intake.draining)

    async def _uncounted(self, request: Request, path: str) -> Answer | None:
        """The answer to a check of the health, to the console or about keys; None for all other requests."""
        if own_answers.asks_health(request, path):
            return own_answers.health(
                request, draining=self._intake.draining, in_sync=self._in_sync()
            )
        aside = next((one for one in self._asides if one.serves(request, path)), None)
        return None if aside is None else await aside.handle(request, path)

    def refuse(self, request: Request, error: BaseException) -> Answer:
        """Answer a request that is not HTTP, or whose handler raised an exception."""
        request_state = RequestState(self._ids.new(), _OTHER_PATH, self._now())
        if isinstance(error, HttpSyntaxError):
            answer = refused(
                self._intake, request_state, request, own_answers.not_http(error), close=True
            )
            _log.debug("not HTTP", exc_info=error)
        else:
            answer = failed(self._totals, request_state, request, error)
        self.finish(request_state)
        return answer

    def identify(
        self, request_state: RequestState, request: Request
    ) -> tuple[Client, ClientTotals]:
        """1. The sender, and its totals so far; raises `Refusal`."""
        directory = self._intake.directory
        claims = directory.claims_of(request.headers, request.connection.peer)
        if claims.named and directory.spoofed(claims):
            self._totals.stripped[SPOOFED] += 1
        client = identified(directory, request, claims)
        request_state.client = client
        request_state.totals = totals = self._totals.of(client)
        totals.requests += 1
        return client, totals
