"""SGLang's request object: the attributes that the plug-in reads, for every supported version, and the output reserved for it.

Names that moved between versions are resolved here; `seams` checks before the engine starts that they exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from evenkeel_fairshare.replica.output_lengths import OutputLengths

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


Limits = list[tuple[Any, int]]
"""Sampling parameters, and their true `max_new_tokens`."""


class Reservations:
    """What each request is expected to produce in all (design R14; docs/design/0006). Deterministic: all ranks see the same requests end.

    SGLang reserves what a request may produce (`max_new_tokens`). A client that asks for 4096 tokens and uses 128 would shrink
    the batch for all. Here a request counts with the longest output of its client's last requests. Without history, and beyond
    it, it counts in full. It never counts with more than SGLang's own number, so no request is refused that SGLang would take.
    """

    def __init__(self, client_of: Callable[[EngineRequest], str | None]) -> None:
        """`client_of`: None for requests of no client, such as the engine's own probes."""
        self._client_of = client_of
        self._lengths = OutputLengths()

    def ended(self, client: str, output_tokens: int) -> None:
        """A request of a client left the batch for good."""
        self._lengths.learn(client, output_tokens)

    def lower(self, requests: Iterable[EngineRequest]) -> Limits:
        """Set the limits that SGLang's estimates read to what is expected; returns those to `restore` right after the estimate.

        SGLang has no place for an expectation. Nothing is generated in between, so the true limits hold.
        """
        limits: Limits = []
        client_of, longest_by_client = self._client_of, self._lengths.longest_by_client
        for request in requests:
            parameters = request.sampling_params
            most = parameters.max_new_tokens
            if not most or parameters.ignore_eos:
                continue  # its length is known
            client = client_of(request)
            longest = None if client is None else longest_by_client.get(client)
            if longest is not None and len(request.output_ids) < longest < most:
                limits.append((parameters, most))
                parameters.max_new_tokens = longest
        return limits


def restore(limits: Limits) -> None:
    """Undo `Reservations.lower`. Requests of one call may share their parameters."""
    for parameters, most in reversed(limits):
        parameters.max_new_tokens = most
