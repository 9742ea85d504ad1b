"""Refusals and faults as answers, and what is noted of them."""

from __future__ import annotations

import logging

from evenkeel_router.api.errors import Refusal, error_body
from evenkeel_router.api.signed_keys import CredentialRefused
from evenkeel_router.ledger.totals import RequestTotals
from evenkeel_router.request import own_answers
from evenkeel_router.request.connection_holders import sender_of
from evenkeel_router.request.console_page import DATA_HEADERS
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.transport.client_request import Answer, CompleteReply, Request

_log = logging.getLogger(__name__)


def refused(
    intake: Intake,
    request_state: RequestState,
    request: Request,
    refusal: Refusal,
    *,
    close: bool = False,
) -> Answer:
    """The answer to a refused request; a stream that has begun ends with an event instead."""
    if request_state.heartbeat is not None:
        begun = request_state.heartbeat.end(refusal)
        if begun is not None:
            request_state.status, request_state.outcome = 200, refusal.outcome
            return begun
    if isinstance(refusal, CredentialRefused):
        intake.audit.refused(refusal, sender_of(intake.directory, request))
    return own_answers.refused(request_state, request, refusal, close=close or intake.draining)


def refused_aside(
    intake: Intake, totals: RequestTotals, request: Request, refusal: Refusal
) -> CompleteReply:
    """The answer to a refused request that asks no replica, and is neither logged nor counted but as refused."""
    totals.refused[refusal.outcome] += 1
    if isinstance(refusal, CredentialRefused):
        intake.audit.refused(refusal, sender_of(intake.directory, request))
    return CompleteReply(
        request,
        status=refusal.status,
        body=error_body(refusal),
        headers=(*DATA_HEADERS, *refusal.headers),
    )


def failed(
    totals: RequestTotals, request_state: RequestState, request: Request, fault: BaseException
) -> CompleteReply:
    """A fault of this program: the traceback goes to the log, not to the client. A stream that has begun ends with its connection."""
    _log.error("the router failed in request %s", request_state.request_id, exc_info=fault)
    totals.faults += 1
    heartbeat = request_state.heartbeat
    if (request_state.stream and request_state.first_byte_s is not None) or (
        heartbeat is not None and heartbeat.stream.started
    ):
        request.connection.abort()
    return own_answers.failed_here(request_state, request)
