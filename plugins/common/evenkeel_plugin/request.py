"""An engine's request as the plug-ins see it, and the policy's request beside it.

Of a request: the attributes that the plug-ins read, the client that its key names, and the output reserved for it. The attributes have
SGLang's names, for every supported version; the plug-in for vLLM gives its requests the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from evenkeel_contract.key import UNKNOWN, ClientKey, ClientKeyError, decode
from evenkeel_fairshare.replica.contract import Request
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
"""Member of `custom_params` with the client key of a request whose tokenized form has no `routing_key`."""


def client_key(request: EngineRequest) -> str | None:
    """The client key that came with a request; None if there is none."""
    if request.routing_key is not None:
        return request.routing_key
    parameters = getattr(request.sampling_params, "custom_params", None)
    key = parameters.get(CLIENT_PARAMETER) if isinstance(parameters, dict) else None
    return key if isinstance(key, str) else None


def is_probe(request: EngineRequest) -> bool:
    """Whether a request is the engine's own health check."""
    return isinstance(request.rid, str) and request.rid.startswith(HEALTH_CHECK)


def was_aborted(request: EngineRequest) -> bool:
    """Whether a request ended, or is about to end, without finishing."""
    reason = request.finished_reason
    return reason is None or reason.to_json()["type"] == "abort"


def context_tokens(request: EngineRequest) -> int:
    """Input and output tokens of a request so far: what an admission must have in memory."""
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


@dataclass(slots=True, eq=False)
class Scheduled(Request):
    """The policy's request with the engine's behind it."""

    engine: EngineRequest = field(kw_only=True)
    bypassed: bool = field(kw_only=True, default=False)
    """Whether the request entered the batch unproposed. The policy does not know it any more, and charges it nothing."""
    context_tokens: int = field(kw_only=True, default=0)
    """Input and output tokens so far when the request began to wait."""
    decodes: bool = field(kw_only=True, default=False)
    """Whether it made a token since it entered the batch."""


def scheduled_of(
    request: EngineRequest, now_s: float, *, refused: Callable[[str], None]
) -> Scheduled:
    """A new request for the policy. Without a readable client key it belongs to the unknown client, at weight 1 (fails closed), and `refused` is
    called with the reason."""
    text = client_key(request)
    try:
        key, client, tenant = _decoded(text)
    except ClientKeyError:
        refused("missing" if text is None else "malformed")
        key, client, tenant = UNKNOWN, UNKNOWN.identity, UNKNOWN.tenant_identity
    most = request.sampling_params.max_new_tokens
    # SGLang makes a token for a request without output, which no usage has: with `n` it computes the prompt in one first.
    unasked = 1 if most == 0 else 0
    return Scheduled(
        id=request.rid,
        client=client,
        tenant=tenant,
        arrival_s=now_s,
        input_tokens=len(request.origin_input_ids),
        max_output_tokens=most or 0,
        client_weight=key.client_weight,
        tenant_weight=key.tenant_weight,
        seed=key.seed,
        tenant_seed=key.tenant_seed,
        charge_input=not key.retried_by_fleet,
        paid_output_tokens=max(key.paid_output_tokens, unasked),
        engine=request,
    )


@lru_cache(maxsize=4096)  # a client sends the same key with each request
def _decoded(text: str | None) -> tuple[ClientKey, str, str]:
    if text is None:
        raise ClientKeyError("no key")
    key = decode(text)
    return key, key.identity, key.tenant_identity


Limits = list[tuple[Any, int]]
"""Sampling parameters, and their true `max_new_tokens`."""


class Reservations:
    """What each request is expected to produce in all (design R14; docs/design/0006). Deterministic: all ranks see the same requests end.

    SGLang reserves what a request may produce (`max_new_tokens`). A client that asks for 4096 tokens and uses 128 would shrink
    the batch for all. Here a request counts with the longest output of its client's last requests. Without history, and beyond
    it, it counts in full. It never counts with more than SGLang's own number, so no request is refused that SGLang would take.
    """

    def __init__(self, client_of: Callable[[EngineRequest], str | None]) -> None:
        """`client_of` returns None for requests of no client, such as the engine's own probes."""
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
