"""The way of a request, step by step (design §5).

    identify → parse → admit → (tokenise) → match prefix → select → forward and stream → account

Each decision is a pure function of `core`; this file puts them in order. The sender is identified before the
body is read, so that nobody unknown makes the router hold megabytes.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from evenkeel_contract.names import CLIENT_HEADERS, GUARDED_HEADERS
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from multidict import istr

from evenkeel_router.api.identity import Claims, Client
from evenkeel_router.api.inference import Endpoint, Inference, parse
from evenkeel_router.fleet.selection import Pages
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.request.forward import Forwarder, going_away
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.request.totals import ClientTotals
from evenkeel_router.state import RouterState
from evenkeel_router.transport.bodies import Account, read_body

_AUTHORIZATION = istr("Authorization")
_IDENTITY = tuple((name, istr(name)) for name in CLIENT_HEADERS)
_GUARDED = tuple(istr(name) for name in GUARDED_HEADERS)
SPOOFED = "identity-header"
"""What `stripped` counts for an identity header from a peer that may not send one."""


class Pipeline:
    """Serves inference requests."""

    def __init__(self, state: RouterState, forwarder: Forwarder, tokenising: Tokenisation) -> None:
        self._state = state
        self._tokenising = tokenising
        self._forwarder = forwarder
        self._now = asyncio.get_running_loop().time

    def identify(
        self, request_state: RequestState, request: web.BaseRequest
    ) -> tuple[Client, ClientTotals]:
        """1. Who sends it, and what was counted of it so far; raises `Refusal`."""
        headers = request.headers
        named: list[tuple[str, str]] = []
        for name, key in _IDENTITY:
            if key in headers:
                named.extend((name, value) for value in headers.getall(key))
        peer = request.remote if named else None  # where nobody is named it counts for nothing
        claims = Claims(headers.getall(_AUTHORIZATION, ()), named, peer or "")
        if named and self._state.directory.spoofed(claims):
            self._state.totals.stripped[SPOOFED] += 1
        client = self._state.directory.identify(claims)
        request_state.client = client
        request_state.totals = totals = self._state.totals.of(client)
        totals.requests += 1
        return client, totals

    async def infer(
        self, request_state: RequestState, request: web.BaseRequest, endpoint: Endpoint
    ) -> web.StreamResponse:
        """Serve one request; raises `Refusal`, and `CancelledError` when its client is gone."""
        state, limits = self._state, self._state.config.limits
        client, totals = self.identify(request_state, request)

        # 2. Parse: what the request asks for, and what is sent on.
        bytes_of_body = Account(state.budget, client.tenant_identity)
        body = await read_body(
            request,
            bytes_of_body,
            limit_bytes=limits.max_body_bytes,
            timeout_s=state.timing.body_timeout_s,
        )
        held_bytes = len(body)
        try:
            inference = parse(endpoint, body, state.limits)
            self._note_stripped(request, inference)
            request_state.stream = inference.stream

            # 3. Admit: the tenant's limits, and the router's.
            tokens = inference.prompt_tokens
            if tokens is None:
                tokens = state.totals.ratio.estimate(inference.prompt_bytes)
            request_state.estimate_tokens = tokens
            state.admission.enter(client, tokens, self._now())
            state.demand.arrived(client.identity, self._now())

            # 4. Tokenise, in tokens mode; match the prefix, select, forward and stream; again while nothing was sent.
            try:
                return await self._forward(request_state, request, client, totals, inference)

            # 5. Account: what it really used, or the best estimate.
            finally:
                self._settle(request_state, client, totals, inference)
        finally:
            bytes_of_body.give(held_bytes)

    async def _tokenise(
        self, request_state: RequestState, client: Client, inference: Inference
    ) -> Pages | None:
        """Its tokens take the place of the estimate: whoever sends too much was refused before."""
        tokenised = request_state.tokenised = await self._tokenising.of(inference)
        if tokenised is None:
            return None
        beyond = tokenised.tokens - request_state.estimate_tokens
        self._state.admission.correct(client, beyond, self._now())
        request_state.estimate_tokens = tokenised.tokens
        return Pages(tokenised.hashes, tokenised.page_tokens, tokenised.first_tokens)

    async def _forward(
        self,
        request_state: RequestState,
        request: web.BaseRequest,
        client: Client,
        totals: ClientTotals,
        inference: Inference,
    ) -> web.StreamResponse:
        state = self._state
        totals.in_flight += 1
        request_state.task = asyncio.current_task()
        state.active_requests.add(request_state)
        try:
            pages = None
            if self._tokenising.wanted:
                pages = await self._tokenise(request_state, client, inference)
            plan = state.fleet.plan(
                client.identity,
                weight=client.weight,
                text=inference.text,
                input_tokens=request_state.estimate_tokens,
                pages=pages,
            )
            return await self._forwarder.forward(
                request_state, AdmittedRequest(client, totals, inference, plan), request
            )
        except asyncio.CancelledError:
            if request_state.interrupted():
                raise going_away() from None
            request_state.left()
            raise
        finally:
            state.active_requests.discard(request_state)
            request_state.task = None
            totals.in_flight -= 1

    def _settle(
        self,
        request_state: RequestState,
        client: Client,
        totals: ClientTotals,
        inference: Inference,
    ) -> None:
        """Give back and charge, however the request ended."""
        state, usage = self._state, request_state.usage
        if request_state.exchange is not None:
            request_state.exchange.close()
        if request_state.ticket is not None:
            state.fleet.finished(request_state.ticket, usage)
        if request_state.booking is not None:
            told = request_state.outcome is None or usage == NOTHING
            state.accounting.ended(request_state.booking, usage, told=told)
        used_tokens = 0
        if usage is not None and usage != NOTHING:
            used_tokens = usage.input_tokens + usage.output_tokens
            cost = state.totals.settle(totals, request_state.replica, usage)
            state.demand.finished(client.identity, cost)
            if usage.input_tokens and request_state.outcome is None and request_state.told:
                state.totals.ratio.learn(inference.prompt_bytes, usage.input_tokens)
                self._compare(request_state, usage)
        state.admission.leave(client, used_tokens - request_state.estimate_tokens, self._now())

    def _compare(self, request_state: RequestState, usage: Usage) -> None:
        """What was foretold with what the replica says, where the two speak of the same."""
        tokenised = request_state.tokenised
        if tokenised is not None:
            tokens = tokenised.tokens
            right = self._state.untokenised.check(
                tokenised.kind, tokens=tokens, reported=usage.input_tokens
            )
            if not right or usage.input_tokens != tokenised.first_tokens:
                return
        if request_state.ticket is not None:
            self._state.totals.foretold(
                request_state.ticket.prediction.basis.value,
                request_state.ticket.prediction.cached_tokens,
                usage.cached_tokens,
            )

    def _note_stripped(self, request: web.BaseRequest, inference: Inference) -> None:
        """Count what a client may not say to an engine; none of it is sent on."""
        stripped = self._state.totals.stripped
        for field in inference.stripped:
            stripped[field] += 1
        for name in _GUARDED:
            if name in request.headers:
                stripped[name] += 1
