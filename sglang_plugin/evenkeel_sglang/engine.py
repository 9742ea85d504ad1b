"""What the plug-in reads off SGLang's request object, in one place, for every supported version.

Names that moved between versions are resolved here; `seams` checks before the engine starts that they exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

HEALTH_CHECK: Final = "HEALTH_CHECK"
"""How SGLang's own probes begin their request ids. They must never be throttled."""


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
