"""The attributes of SGLang's request object that the plug-in reads, for every supported version.

Names that moved between versions are resolved here; `seams` checks before the engine starts that they exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

HEALTH_CHECK: Final = "HEALTH_CHECK"
"""Prefix of the request ids of SGLang's own probes, which are never throttled."""


class EngineRequest(Protocol):
    """SGLang's `Req`, as far as the plug-in reads it. Hashable by identity."""

    rid: str
    routing_key: str | None
    origin_input_ids: Sequence[int]
    output_ids: Sequence[int]
    extra_key: str | None
    num_matched_prefix_tokens: int
    sampling_params: Any

    finished_reason: Any

    def finished(self) -> bool: ...

    def __hash__(self) -> int: ...


CLIENT_PARAMETER: Final = "evenkeel_client"
"""Of `custom_params`: the client key of a request whose tokenized form has no `routing_key`."""


def client_key(request: EngineRequest) -> str | None:
    """The client key that came with it; None if there is none."""
    if request.routing_key is not None:
        return request.routing_key
    parameters = getattr(request.sampling_params, "custom_params", None)
    key = parameters.get(CLIENT_PARAMETER) if isinstance(parameters, dict) else None
    return key if isinstance(key, str) else None


def is_probe(request: EngineRequest) -> bool:
    """Whether it is the engine's own health check."""
    return isinstance(request.rid, str) and request.rid.startswith(HEALTH_CHECK)


def was_aborted(request: EngineRequest) -> bool:
    """Whether it ended, or is about to end, without finishing."""
    reason = request.finished_reason
    return reason is None or reason.to_json()["type"] == "abort"


def context_tokens(request: EngineRequest) -> int:
    """Input and output so far: what an admission must have in memory."""
    return len(request.origin_input_ids) + len(request.output_ids)


def prefix_tokens(request: Any) -> int:
    """Tokens of the context that the last match found on the device."""
    # 0.5.22 replaced the indices by their number.
    if hasattr(request, "prefix_len"):
        return int(request.prefix_len)
    return len(request.prefix_indices)


def cache_namespace(request: Any) -> str:
    """Requests of different namespaces share no prefix."""
    salt = getattr(request, "cache_salt", None)
    return "" if request.extra_key is None and salt is None else f"{request.extra_key}\0{salt}"
