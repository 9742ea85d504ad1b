"""What an engine reports of a request is a claim: the bounds that the request itself gives it (R18). Pure.

| figure  | at least                                        | at most                                          | otherwise       |
|---------|-------------------------------------------------|--------------------------------------------------|-----------------|
| input   | 0                                               | bytes of the body, what a template adds, media; the context | the estimate |
| cached  | 0                                               | the input                                        | the bound       |
| output  | what was streamed, or what the answer's text is | bound of the client × sequences                  | what was seen   |

A claim outside of these bounds is not charged and teaches no estimate. It is counted, and the log names the replica.
"""

from __future__ import annotations

from typing import Final

from evenkeel_fairshare.fleet.contract import Usage

from evenkeel_router.api.answers import written_in
from evenkeel_router.api.inference import Inference
from evenkeel_router.api.openai import LONG_TOKEN_BYTES, EventScan
from evenkeel_router.api.prompt import USUAL_TOKEN_BYTES
from evenkeel_router.request.request_state import AdmittedRequest, RequestState

TEMPLATE_TOKENS: Final = 4096
"""Tokens that a chat template may add: a default system prompt, and the form of tools."""
TEMPLATE_TOKENS_PER_PROMPT: Final = 256
"""What it may add to each further prompt of a request, as the templates of rankings do."""
EVENTS_BESIDE: Final = 2
"""Events of a sequence that carry no token: the role, and the reason of the end."""
_FRAME_BYTES: Final = 1024  # of a whole answer, beside its text


def most_input_tokens(inference: Inference, context_tokens: int = 0) -> int:
    """Most input tokens that an engine can have read: no token is shorter than a byte of the body.

    `context_tokens`: the engine's longest prompt; 0 where it is unknown. Engines may count a prompt once for each answer.
    """
    prompts, media = inference.prompts, sum(one.most_tokens for one in inference.media)
    own = max(len(inference.body), inference.prompt_bytes, inference.prompt_tokens or 0)
    most = own + media + TEMPLATE_TOKENS + TEMPLATE_TOKENS_PER_PROMPT * prompts
    if context_tokens:
        most = min(most, context_tokens * prompts)
    return most * max(1, inference.sequences // prompts)


def of_stream(state: RequestState, admitted: AdmittedRequest, scan: EventScan) -> Usage:
    """The usage of a stream: as reported, within the bounds, else as estimated and counted."""
    claim, inference = scan.usage, admitted.inference
    if claim is None:
        return admitted.match.estimate(min(scan.output_tokens, inference.most_output_tokens))
    if (
        claim.input_tokens <= inference.prompt_bytes
        and scan.most_events - scan.left - EVENTS_BESIDE
        <= claim.output_tokens
        <= inference.most_output_tokens
        and not scan.packed
    ):
        return claim  # the usual case
    least = scan.least_tokens
    if inference.loose_events:
        least //= 2
    least -= EVENTS_BESIDE * inference.sequences
    return _checked(state, admitted, claim, least=least, seen=scan.output_tokens)


def of_whole(
    state: RequestState,
    admitted: AdmittedRequest,
    claim: Usage | None,
    body: bytes,
    *,
    written: int | None = None,
) -> Usage:
    """The usage of a whole answer, in the same way. `written`: bytes of text in the body; None: not counted yet."""
    inference = admitted.inference
    most = inference.most_output_tokens
    if claim is None:
        if most and written is None:
            written = written_in(body)
        return admitted.match.estimate(min((written or 0) // USUAL_TOKEN_BYTES, most))
    input_tokens, _, output_tokens = claim
    if (
        input_tokens <= inference.prompt_bytes
        and output_tokens <= most
        and len(body) <= _FRAME_BYTES
    ):
        return claim  # the usual case
    least = seen = 0
    # An answer of so few bytes has no more tokens than were reported.
    if most and len(body) > _FRAME_BYTES + LONG_TOKEN_BYTES * output_tokens:
        written = written_in(body) if written is None else written
        if not inference.loose_events:
            least = written // LONG_TOKEN_BYTES
        seen = written // USUAL_TOKEN_BYTES
    if output_tokens > most:
        written = written_in(body) if written is None else written
        seen = written // USUAL_TOKEN_BYTES
    return _checked(state, admitted, claim, least=least, seen=seen)


def _checked(
    state: RequestState, admitted: AdmittedRequest, claim: Usage, *, least: int, seen: int
) -> Usage:
    """The claim, with what is impossible replaced. `least`: output tokens that it has certainly; `seen`: about as many."""
    inference, ticket = admitted.inference, state.ticket
    most = inference.most_output_tokens
    context_tokens = 0 if ticket is None else ticket.member.context_tokens
    most_input = most_input_tokens(inference, context_tokens)
    usage = claim
    if claim.input_tokens > most_input:
        usage = admitted.match.estimate(claim.output_tokens)
        state.impossible = f"{claim.input_tokens} input tokens (at most {most_input})"
    if not min(least, most) <= claim.output_tokens <= most:
        usage = usage._replace(output_tokens=min(seen, most))
        state.impossible = (
            f"{claim.output_tokens} output tokens (from {min(least, most)} to {most})"
        )
    return usage
