"""The way of a request, step by step (DESIGN section 5).

    identify → parse → admit → (tokenise) → match prefix → select → forward and stream → account

Each decision is a pure function; this file puts them in order. The sender is identified before the body is read, so
that an unknown sender cannot make the router hold megabytes.
"""

from __future__ import annotations

import asyncio

from evenkeel_contract.names import CLIENT_HEADERS, GUARDED_HEADERS
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from multidict import istr

from evenkeel_router.api.endpoints import Endpoint, parse
from evenkeel_router.api.identity import KEY_HEADERS, Claims, Client
from evenkeel_router.api.inference import Inference
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.fleet.selection import Pages, Prediction
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.prefix.prefixes import Prefixes
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.request import refusals
from evenkeel_router.request.admission import TopUp, admit
from evenkeel_router.request.forward import Forwarder
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.request.totals import ClientTotals, RequestTotals
from evenkeel_router.settings import Settings
from evenkeel_router.transport.bodies import TenantMemory, read_body
from evenkeel_router.transport.client_request import Answer, Request

_AUTHORIZATION = istr("Authorization")
_CONTENT_TYPE = istr("Content-Type")
_KEYS = tuple(map(istr, KEY_HEADERS))
_IDENTITY = tuple((name, istr(name)) for name in CLIENT_HEADERS)
_GUARDED = tuple(istr(name) for name in GUARDED_HEADERS)
SPOOFED = "identity-header"
"""What `stripped` counts for an identity header from a peer that may not send one."""


class Pipeline:
    """Serves inference requests."""

    def __init__(  # noqa: PLR0913 - each is one object of the router
        self,
        settings: Settings,
        intake: Intake,
        replicas: Replicas,
        service_ledger: ServiceLedger,
        *,
        top_up: TopUp,
        totals: RequestTotals,
        forwarder: Forwarder,
        prefixes: Prefixes,
        tokenising: Tokenisation,
    ) -> None:
        self._settings = settings
        self._intake = intake
        self._replicas = replicas
        self._service_ledger = service_ledger
        self._top_up = top_up
        self._totals = totals
        self._forwarder = forwarder
        self._prefixes = prefixes
        self._tokenising = tokenising
        self._now = asyncio.get_running_loop().time

    def identify(
        self, request_state: RequestState, request: Request
    ) -> tuple[Client, ClientTotals]:
        """1. The sender, and its totals so far; raises `Refusal`."""
        headers = request.headers
        named: list[tuple[str, str]] = []
        for name, key in _IDENTITY:
            if key in headers:
                named.extend((name, value) for value in headers.getall(key))
        peer = request.remote if named else None  # it matters only where a header names a client
        keys: list[str] = []
        for key_header in _KEYS:
            if key_header in headers:
                keys += headers.getall(key_header)
        claims = Claims(headers.getall(_AUTHORIZATION, ()), keys, named, peer or "")
        if named and self._intake.directory.spoofed(claims):
            self._totals.stripped[SPOOFED] += 1
        client = self._intake.directory.identify(claims)
        request_state.client = client
        request_state.totals = totals = self._totals.of(client)
        totals.requests += 1
        return client, totals

    async def infer(
        self, request_state: RequestState, request: Request, endpoint: Endpoint
    ) -> Answer:
        """Serve one request; raises `Refusal`, and `CancelledError` when its client is gone."""
        intake = self._intake
        client, totals = self.identify(request_state, request)

        # 2. Parse: what the request asks for, and what is sent on.
        body_memory = TenantMemory(intake.body_memory, client.tenant_identity)
        body = await read_body(
            request,
            body_memory,
            limit_bytes=self._settings.limits.max_body_bytes,
            timeout_s=self._settings.timing.body_timeout_s,
        )
        held_bytes = len(body)
        try:
            content_type = request.headers.get(_CONTENT_TYPE, "") if endpoint.api.form else ""
            inference = parse(endpoint, body, intake.limits, content_type=content_type)
            self._note_stripped(request, inference)
            request_state.stream = inference.stream

            # 3. Admit: the tenant's limits, and the router's.
            tokens = inference.prompt_tokens
            if tokens is None:
                tokens = self._totals.ratio.estimate(inference.prompt_bytes)
            request_state.estimate_tokens = tokens
            await admit(intake.admission, self._top_up, client, tokens, self._now)
            if endpoint.api.computes:
                self._service_ledger.demand.arrived(client.identity, self._now())

            # 4. Tokenise, in tokens mode; match the prefix, select, forward and stream; again while nothing was sent.
            try:
                return await self._forward(
                    request_state, request, client, totals, endpoint, inference
                )

            # 5. Account: what it really used, or the best estimate.
            finally:
                self._settle(request_state, client, totals, endpoint, inference)
        finally:
            body_memory.release(held_bytes)

    async def _tokenise(
        self, request_state: RequestState, client: Client, endpoint: Endpoint, inference: Inference
    ) -> Pages | None:
        """Its tokens replace the estimate. A client that sends too much was refused before."""
        tokenised = request_state.tokenised = await self._tokenising.of(endpoint, inference)
        if tokenised is None:
            return None
        beyond = tokenised.tokens - request_state.estimate_tokens
        self._intake.admission.correct(client, beyond, self._now())
        request_state.estimate_tokens = tokenised.tokens
        return Pages(tokenised.hashes, tokenised.page_tokens, tokenised.first_tokens)

    async def _forward(
        self,
        request_state: RequestState,
        request: Request,
        client: Client,
        totals: ClientTotals,
        endpoint: Endpoint,
        inference: Inference,
    ) -> Answer:
        totals.in_flight += 1
        request_state.task = asyncio.current_task()
        self._intake.active_requests.add(request_state)
        try:
            pages = None
            if self._tokenising.wanted:
                pages = await self._tokenise(request_state, client, endpoint, inference)
            match = self._replicas.fleet.match(
                client.identity,
                weight=client.weight,
                text=inference.text,
                input_tokens=request_state.estimate_tokens if endpoint.api.computes else 0,
                pages=pages,
            )
            return await self._forwarder.forward(
                request_state, AdmittedRequest(client, totals, endpoint, inference, match), request
            )
        except asyncio.CancelledError:
            if request_state.interrupted():
                raise refusals.shutting_down() from None
            request_state.client_left()
            raise
        finally:
            self._intake.active_requests.discard(request_state)
            request_state.task = None
            totals.in_flight -= 1

    def _settle(
        self,
        request_state: RequestState,
        client: Client,
        totals: ClientTotals,
        endpoint: Endpoint,
        inference: Inference,
    ) -> None:
        """Give back and charge, however the request ended."""
        usage, attempt = request_state.usage, request_state.attempt
        if attempt is not None:
            attempt.finished(usage)
        used_tokens = 0
        if usage is not None and usage != NOTHING:
            used_tokens = usage.input_tokens + usage.output_tokens
            at_replica = self._replicas.totals(request_state.replica)
            cost = self._totals.settle(totals, at_replica, usage)
            self._service_ledger.demand.finished(client.identity, cost)
            good = request_state.outcome is None and request_state.usage_reported
            if usage.input_tokens and good and attempt is not None:
                if inference.prompt_bytes:
                    self._totals.ratio.learn(inference.prompt_bytes, usage.input_tokens)
                self._compare(request_state, attempt.ticket.prediction, usage)
        elif request_state.outcome is None and not endpoint.api.computes:
            used_tokens = (
                request_state.estimate_tokens
            )  # the model did not run; the tenant's limit counts it
        unpaid_tokens = used_tokens - request_state.estimate_tokens
        self._intake.admission.leave(client, unpaid_tokens, self._now())

    def _compare(self, request_state: RequestState, prediction: Prediction, usage: Usage) -> None:
        """The predicted cached tokens with those that the replica reports, where both count the same prompt."""
        tokenised = request_state.tokenised
        if tokenised is not None:
            right = self._prefixes.untokenised.check(
                tokenised.kind, tokens=tokenised.tokens, reported=usage.input_tokens
            )
            if not right or usage.input_tokens != tokenised.first_tokens:
                return
        self._totals.predicted(
            prediction.basis.value, prediction.cached_tokens, usage.cached_tokens
        )

    def _note_stripped(self, request: Request, inference: Inference) -> None:
        """Count the fields and headers that clients may not send to an engine; none of them is sent on."""
        stripped = self._totals.stripped
        for field in inference.stripped:
            stripped[field] += 1
        for name in _GUARDED:
            if name in request.headers:
                stripped[name] += 1
