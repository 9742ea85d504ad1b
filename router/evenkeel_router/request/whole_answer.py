"""The client's answer where the replica's answer is no stream."""

from __future__ import annotations

from typing import Final

from evenkeel_fairshare.fleet.contract import NOTHING, Usage

from evenkeel_router.api.answers import ErrorAnswer, GarbageError, of_bytes, of_reply
from evenkeel_router.api.errors import Refusal, rejected_by_replica
from evenkeel_router.request import own_answers, usage_claims
from evenkeel_router.request.failures import BUSY_STATUSES, KEY_STATUSES, Cause, FailedAttempt
from evenkeel_router.request.large_bodies import LargeBodies
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.transport.client_request import CompleteReply, Request
from evenkeel_router.transport.upstream import Reply

_BYTES: Final = "application/octet-stream"


async def read_large(
    large_bodies: LargeBodies, admitted: AdmittedRequest, reply: Reply, body: bytes
) -> tuple[Usage | None, int] | None:
    """Usage and bytes of text of a large answer, read beside the loop; None: it has to be read here. Raises `FailedAttempt`."""
    inference = admitted.inference
    if reply.status != 200 or inference.binary:
        return None
    try:
        return await large_bodies.answer(
            admitted.endpoint,
            body,
            reply.content_type,
            tenant=admitted.client.tenant_identity,
            counts_text=inference.most_output_tokens > 0,
        )
    except ErrorAnswer as error:
        raise FailedAttempt.of_refusal(error.refusal) from error
    except GarbageError as error:
        raise FailedAttempt(str(error), cause=Cause.UNREADABLE) from error
    except Refusal:  # the process is gone
        return None


def relay_whole(
    request_state: RequestState,
    admitted: AdmittedRequest,
    *,
    request: Request,
    reply: Reply,
    body: bytes | None,
    read: tuple[Usage | None, int] | None = None,
    close: bool,
) -> CompleteReply:
    """The client's answer if the replica's answer is no stream; raises `FailedAttempt`. `read`: what `read_large` made of it."""
    status, inference = reply.status, admitted.inference
    api = admitted.endpoint.api
    content_type = reply.content_type or _BYTES
    if status != 200 or body is None:
        raise _no_answer(reply)
    headers = request_state.reply_headers()
    is_bytes = inference.binary and content_type.startswith(_BYTES)
    if is_bytes and reply.metadata:
        headers = (*headers, ("metadata", reply.metadata))
    try:
        written = None
        if is_bytes:
            reported = of_bytes(reply.metadata)
        elif read is None:
            reported = of_reply(admitted.endpoint, body, content_type)
        else:
            reported, written = read
    except ErrorAnswer as error:
        raise FailedAttempt.of_refusal(error.refusal) from error
    except GarbageError as error:
        raise FailedAttempt(str(error), cause=Cause.UNREADABLE) from error
    if inference.stream:
        raise FailedAttempt(f"the replica answered 200 with {content_type}", cause=Cause.UNREADABLE)
    request_state.usage_reported = reported is not None
    request_state.usage = (
        usage_claims.of_whole(request_state, admitted, reported, body, written=written)
        if api.computes
        else NOTHING
    )
    return CompleteReply(
        request,
        status=status,
        body=body,
        content_type=content_type,
        headers=headers,
        close=close,
    )


def _no_answer(reply: Reply) -> FailedAttempt:
    """The failure of an answer with another status than 200, or of a stream where none was asked for."""
    status, body = reply.status, reply.body
    content = reply.content_type or "no content type"
    if status in KEY_STATUSES or (status >= 500 and status not in BUSY_STATUSES):
        return FailedAttempt(f"the replica answered {status} with {content}")
    if body is None or status < 400:
        return FailedAttempt(
            f"the replica answered {status} with {content}", cause=Cause.UNREADABLE
        )
    refusal = rejected_by_replica(status, body)
    if status in BUSY_STATUSES:
        refusal.retry_after_s = own_answers.retry_after_s(reply.retry_after)
    return FailedAttempt.of_refusal(refusal)
