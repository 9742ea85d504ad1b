"""The way of a request, step by step (DESIGN section 5).

    identify → parse → admit → (tokenise) → match prefix → select → forward and stream → account

Each decision is a pure function; this file puts them in order. The sender is identified before the body is read, so
that an unknown sender cannot make the router hold megabytes.

`front` has what is around these steps: refusals and faults become answers there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from evenkeel_contract.cellswire import CELL_PATH
from evenkeel_contract.names import GUARDED_HEADERS
from evenkeel_contract.routerconfig import AtZero
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from multidict import istr

from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import OURS, Outcome
from evenkeel_router.api.identity import Client
from evenkeel_router.api.inference import Inference
from evenkeel_router.api.volatile import label_of
from evenkeel_router.fleet.long_prompts import NOT_LOOKED_UP
from evenkeel_router.fleet.long_work import LongWork
from evenkeel_router.fleet.prediction import Pages
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.ledger.endings import ANSWERED, BEYOND, GIVEN_UP, ending_of
from evenkeel_router.ledger.estimates import Estimates
from evenkeel_router.ledger.federation import Federation
from evenkeel_router.ledger.key_sets import KeySetReader
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.ledger.totals import ClientTotals, ReplicaTotals, RequestTotals
from evenkeel_router.prefix.kv_follower import Prefixes
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.prefix.tokenised import Tokenised
from evenkeel_router.request import own_answers
from evenkeel_router.request.admission import PartUsedUp, TopUp, topped_up
from evenkeel_router.request.forward import Forwarder
from evenkeel_router.request.front import Front, RequestSink
from evenkeel_router.request.heartbeat import Heartbeat
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.large_bodies import SMALL_BYTES, LargeBodies, is_large
from evenkeel_router.request.request_state import (
    AdmittedRequest,
    RequestState,
    RequestTracer,
    Step,
)
from evenkeel_router.settings import Settings
from evenkeel_router.transport.client_request import (
    Answer,
    Aside,
    Request,
    Stream,
    read_body,
    whole_body,
)
from evenkeel_router.transport.downstream import yielding

_log = logging.getLogger(__name__)
_ANSWERED_BEYOND: Final = ANSWERED + BEYOND
_CONTENT_TYPE = istr("Content-Type")
_GUARDED = tuple(istr(name) for name in GUARDED_HEADERS)


class Pipeline(Front):
    """Serves the requests of one service."""

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
        asides: Sequence[Aside],
        key_sets: KeySetReader,
        federation: Federation,
        large_bodies: LargeBodies,
        tracer: RequestTracer,
        sinks: Sequence[RequestSink],
    ) -> None:
        super().__init__(
            intake, totals, asides=asides, key_sets=key_sets, tracer=tracer, sinks=sinks
        )
        self._settings = settings
        self._replicas = replicas
        self._service_ledger = service_ledger
        self._top_up = top_up
        self._forwarder = forwarder
        self._prefixes = prefixes
        self._tokenising = tokenising
        self._federation = federation
        self._large_bodies = large_bodies
        self._long_work = LongWork()
        replicas.fleet.later = self._long_work.add

    def _models(self, name: str, client: Client) -> bytes:
        return own_answers.models(
            name, self._settings.config, started_unix=self._intake.started_unix
        )

    def _in_sync(self) -> bool:
        return self._replicas.in_sync

    async def _uncounted(self, request: Request, path: str) -> Answer | None:
        if path == CELL_PATH and self._federation.expected is not None:
            return own_answers.cell(request, self._federation)
        return await super()._uncounted(request, path)

    @property
    def is_gone(self) -> bool:
        """Whether no replica takes requests, and no request starts one."""
        replicas, config = self._replicas, self._settings.config
        starts = config.at_zero is AtZero.ACTIVATE
        return replicas.in_sync and not starts and not replicas.fleet.routable

    async def infer(
        self, request_state: RequestState, request: Request, endpoint: Endpoint
    ) -> Answer:
        """Serve one request; raises `Refusal`, and `CancelledError` when its client is gone."""
        intake = self._intake
        client, totals = self.identify(request_state, request)

        # 2. Parse: what the request asks for, and what is sent on.
        if request_state.trace is not None:
            request_state.trace.step(Step.PARSE)
        body_memory = intake.body_memory.of(client.tenant_identity)
        limit_bytes = self._settings.config.limits.max_body_bytes
        body = whole_body(request, body_memory, limit_bytes)
        if body is None:
            body = await read_body(
                request, body_memory, limit_bytes=limit_bytes, timeout_s=self._settings.timing.body_timeout_s,
            )  # fmt: skip
        held_bytes = len(body)
        try:
            content_type = request.headers.get(_CONTENT_TYPE, "")
            if held_bytes > SMALL_BYTES and is_large(body):
                with yielding(request.connection):
                    inference = await self._large_bodies.inference(
                        endpoint, body, intake.limits, content_type, client=client, block_bytes=self._replicas.fleet.block_bytes,
                    )  # fmt: skip
            else:
                inference = endpoint.api.parse(body, intake.limits, content_type)
            del body  # what is sent on may be a copy
            if inference.stripped or any(map(request.headers.__contains__, _GUARDED)):
                request_state.removed = inference.stripped
                headers = filter(request.headers.__contains__, _GUARDED)
                self._totals.stripped.update((*map(label_of, inference.stripped), *headers))
            request_state.stream = inference.stream

            # 3. Admit: the tenant's limits, and the router's.
            if request_state.trace is not None:
                request_state.trace.step(Step.ADMIT)
            adapter, estimates = inference.adapter, totals.estimates
            known = estimates.model if adapter is None else estimates.of(adapter)
            tokens = known.of(inference)
            request_state.estimate_tokens = tokens
            now_s, sequences = self._now(), inference.sequences
            try:
                intake.admission.enter(client, tokens, now_s, sequences)
            except PartUsedUp as refusal:
                with yielding(request.connection):
                    await topped_up(
                        intake.admission, self._top_up, client, tokens, self._now, refusal=refusal, sequences=sequences,
                    )  # fmt: skip
            if endpoint.api.computes:
                self._service_ledger.demand.arrived(client.identity, now_s, sequences)

            # 4. Tokenise, in tokens mode; match the prefix, select, forward and stream; again while nothing was sent.
            try:
                return await self._forward(
                    request_state, request, client, totals, endpoint, inference
                )
            # 5. Account: what it really used, or the best estimate.
            finally:
                self._settle(request_state, client, totals, endpoint, inference, known)
        finally:
            body_memory.release(held_bytes)

    async def _tokenise(
        self, request_state: RequestState, client: Client, endpoint: Endpoint, inference: Inference
    ) -> Pages | None:
        """Tokenise the prompts; their tokens replace the estimate. A client that sends too much was refused before."""
        tokenised = request_state.tokenised = await self._tokenising.of(
            endpoint, inference, cache_salt=client.cache_salt
        )
        if tokenised is None:
            return None
        beyond = tokenised.tokens - request_state.estimate_tokens
        self._intake.admission.correct(client, beyond, self._now())
        request_state.estimate_tokens = tokenised.tokens
        return tokenised.first

    async def _forward(  # noqa: PLR0917 - the state of one request, called once
        self,
        request_state: RequestState,
        request: Request,
        client: Client,
        totals: ClientTotals,
        endpoint: Endpoint,
        inference: Inference,
    ) -> Answer:
        sequences = inference.sequences
        totals.in_flight += sequences
        request_state.task = request.connection.task
        self._intake.active_requests.add(request_state)
        try:
            if self._intake.heartbeat_s and inference.stream:
                stream = Stream(request, headers=request_state.reply_headers())
                request_state.heartbeat = Heartbeat(
                    stream,
                    endpoint.api.dialect,
                    self._intake.heartbeat_s,
                    lambda: request_state.first_byte_s is not None,
                )
            pages = None
            if self._tokenising.wanted:
                if request_state.trace is not None:
                    request_state.trace.step(Step.TOKENISE)
                pages = await self._tokenise(request_state, client, endpoint, inference)
            if request_state.trace is not None:
                request_state.trace.step(Step.SELECT)
            fleet, looked_up = self._replicas.fleet, NOT_LOOKED_UP
            if len(inference.body) > SMALL_BYTES:
                looked_up = await self._long_work.looked_up(
                    fleet, inference, pages, client.cache_salt
                )
            match = fleet.match(
                client.identity, weight=client.weight, text=inference.text, looked_up=looked_up, input_tokens=request_state.estimate_tokens if endpoint.api.computes else 0,
                pages=pages, adapter=inference.adapter, cache_salt=client.cache_salt, sequences=sequences,
            )  # fmt: skip
            inference.text = b""
            admitted = AdmittedRequest(client, totals, endpoint, inference, match)
            return await self._forwarder.forward(request_state, admitted, request)
        except asyncio.CancelledError:
            if request_state.interrupted():
                raise own_answers.shutting_down() from None
            request_state.client_left()
            raise
        finally:
            self._intake.active_requests.discard(request_state)
            request_state.task = None
            totals.in_flight -= sequences

    def _settle(  # noqa: PLR0917 - the state of one request, called once
        self,
        request_state: RequestState,
        client: Client,
        totals: ClientTotals,
        endpoint: Endpoint,
        inference: Inference,
        known: Estimates,
    ) -> None:
        """Return what the request reserved and charge what it used, for every kind of end."""
        if request_state.trace is not None:
            request_state.trace.step(Step.ACCOUNT)
        usage, ticket = request_state.usage, request_state.ticket
        used_tokens = 0
        ran = usage is not None and usage != NOTHING
        if usage is None or not ran:
            usage = request_state.charged  # of an attempt before, or of one without content
            ran = usage != NOTHING
        if ran:
            input_tokens, cached_tokens, output_tokens = usage
            used_tokens = input_tokens + output_tokens
            at_replica = self._replicas.totals[request_state.replica]
            cost = self._totals.settle(totals, at_replica, usage)
            self._service_ledger.demand.finished(client.identity, cost, inference.sequences)
            good = request_state.outcome is None and request_state.usage_reported
            if request_state.impossible:
                self._distrust(request_state, at_replica)
            elif input_tokens and good and ticket is not None:
                known.taught(inference, input_tokens)
                prediction = ticket.prediction
                tokenised = request_state.tokenised
                if tokenised is None or self._is_comparable(tokenised, usage):
                    self._totals.predicted(
                        prediction.basis, prediction.cached_tokens, cached_tokens
                    )
        elif request_state.outcome is None and not endpoint.api.computes:
            used_tokens = (
                request_state.estimate_tokens
            )  # the model did not run; the tenant's limit counts it
        unpaid_tokens = used_tokens - request_state.estimate_tokens
        self._intake.admission.leave(client, unpaid_tokens, self._now(), inference.sequences)

    def _distrust(self, request_state: RequestState, at: ReplicaTotals) -> None:
        """A replica reported what its request cannot have used: count it, and log the 1st, 2nd, 4th, 8th … time."""
        at.rejected_usage += 1
        if at.rejected_usage & (at.rejected_usage - 1) == 0:
            _log.warning(
                "replica %s reported %s for request %s; the bound or the estimate is charged instead "
                "(%d such reports so far; evenkeel_router_replica_usage_rejected_total counts)",
                request_state.replica,
                request_state.impossible,
                request_state.request_id,
                at.rejected_usage,
            )

    def _is_comparable(self, tokenised: Tokenised, usage: Usage) -> bool:
        """Whether the predicted cached tokens and those that the replica reports are of the same prompt."""
        right = self._prefixes.untokenised.check(
            tokenised.kind, tokens=tokenised.tokens, reported=usage.input_tokens
        )
        return right and usage.input_tokens == tokenised.first.tokens

    def _ending(self, request_state: RequestState, now_s: float, *, beyond: bool) -> str:
        """How a request ended (`endings`)."""
        if request_state.outcome is None:
            return _ANSWERED_BEYOND if beyond else ANSWERED
        started_s, first_s = request_state.started_s, request_state.first_byte_s
        silent_s, replica = 0.0, self._replicas.configured.get(request_state.replica)
        if request_state.outcome is Outcome.CLIENT_GONE and replica is not None:
            content_s = self._intake.content_s.get(replica.url, 0.0)
            silent_s = now_s - content_s
            if first_s is None and request_state.sent_s:
                self._intake.abandoned.add(
                    replica.url,
                    request_state.sent_s,
                    now_s,
                    stream=request_state.stream,
                    tokens=request_state.estimate_tokens,
                    content_s=content_s,
                )
        return ending_of(
            request_state.outcome,
            ttft_s=None if first_s is None else first_s - started_s,
            duration_s=now_s - started_s,
            silent_s=silent_s,
            beyond=beyond,
        )

    def finish(self, request_state: RequestState) -> None:
        """Count and log a request that is over."""
        now_s, totals = self._now(), request_state.totals
        duration_s = now_s - request_state.started_s
        if request_state.outcome is not None:
            errors = self._totals.refused if totals is None else totals.errors
            errors[request_state.outcome] += 1
        usage, first_s = request_state.usage, request_state.first_byte_s
        ttft_s = None if first_s is None else first_s - request_state.started_s
        served = None if usage == NOTHING else usage
        if totals is not None and served is not None:
            totals.ended(duration_s, ttft_s)
            if ttft_s is not None and request_state.stream:
                totals.streamed(duration_s - ttft_s, served.output_tokens)
            delivery = request_state.delivery
            if delivery is not None and delivery.tokens and request_state.outcome is None:
                totals.experienced(delivery.qoe())
        client = request_state.client
        if client is not None and totals is not None:
            beyond = client.identity in self._service_ledger.fairness.now.beyond_share
            ending = self._ending(request_state, now_s, beyond=beyond)
            totals.ended_as(ending, now_s)
            # The objective of clients within their share: the time of the first token, or that none came through our fault.
            if not beyond and ttft_s is not None and served is not None:
                self._totals.within_share_ttft_s.new.append(ttft_s)
            elif not beyond and ttft_s is None and self._missed(request_state, ending, duration_s):
                self._totals.within_share_ttft_s.never()
        for sink in self._sinks:
            sink(request_state, duration_s)
        if request_state.trace is not None:
            request_state.trace.ended(request_state)

    def _missed(self, request_state: RequestState, ending: str, duration_s: float) -> bool:
        """Whether no token came through our fault: the request failed, or its client gave it up when it had missed the objective already."""
        threshold_s = self._settings.config.ttft_threshold_s
        late = threshold_s is not None and duration_s > threshold_s
        return request_state.outcome in OURS or (ending == GIVEN_UP and late)
