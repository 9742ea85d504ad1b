"""A replica's 4xx in the format of all other errors.

SGLang has two formats of its own, and no code for a prompt that is too long: that is recognised by its message.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from evenkeel_router.api.errors import Refusal, error_body
from evenkeel_router.api.outcomes import of_status

CONTEXT_LENGTH_EXCEEDED: Final = "context_length_exceeded"
"""OpenAI's code for a prompt, or a prompt and its `max_tokens`, that the model has no room for."""
REJECTED: Final = "rejected_by_engine"
"""The code where the engine names none."""

_TOO_LONG: Final = re.compile(
    r"longer than the model's context length"  # SGLang's tokenizer manager: the prompt alone
    r"|exceeds the model's maximum context length"  # the same: with max_tokens
    r"|exceeds the maximum allowed length"  # SGLang's scheduler
)


class _Error(msgspec.Struct):
    message: object = None
    param: object = None
    code: object = None


class _Reply(_Error):
    """`error` on `/generate` and at OpenAI; all else is SGLang's format on OpenAI's endpoints, and FastAPI's."""

    error: _Error | str | None = None
    detail: object = None


_REPLY: Final = msgspec.json.Decoder(_Reply)


def rejected_by_replica(status: int, body: bytes) -> Refusal:
    """The error of a 4xx with this body. Its code is kept if it is a word, not a number."""
    error: _Error = _Error()
    try:
        reply = _REPLY.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    else:
        if isinstance(reply.error, _Error):
            error = reply.error
        else:
            error = _Error(reply.error or reply.message or reply.detail, reply.param, reply.code)
    message = error.message
    if not isinstance(message, str) or not message:
        message = f"The replica rejected the request with status {status}."
    code = error.code if isinstance(error.code, str) and not error.code.isdigit() else ""
    if not code:
        code = CONTEXT_LENGTH_EXCEEDED if _TOO_LONG.search(message) else REJECTED
    param = error.param if isinstance(error.param, str) else None
    refusal = Refusal(of_status(status), message, code=code, param=param)
    refusal.status = status
    return refusal


def replica_error_body(status: int, body: bytes) -> bytes:
    """The body that the client gets for a replica's 4xx."""
    return error_body(rejected_by_replica(status, body))
