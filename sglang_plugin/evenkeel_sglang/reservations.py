"""How much output SGLang reserves for a request (design R14; docs/design/0006).

SGLang reserves what a request may produce (`max_new_tokens`). A client that asks for 4096 tokens and uses 128 would shrink the
batch for all. Here a request counts with the longest output of its client's last requests. Without history, and beyond it, it
counts in full. It never counts with more than SGLang's own number, so no request is refused that SGLang would take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from evenkeel_fairshare.replica.output_lengths import OutputLengths

from evenkeel_sglang.engine import EngineRequest

Limits = list[tuple[Any, int]]
"""Sampling parameters, and their true `max_new_tokens`."""


class Reservations:
    """What each request is expected to produce in all. Deterministic: all ranks see the same requests end."""

    def __init__(self, client_of: Callable[[EngineRequest], str | None]) -> None:
        """`client_of`: None for requests of no client, such as the engine's own probes."""
        self._client_of = client_of
        self._lengths = OutputLengths()

    def ended(self, client: str, output_tokens: int) -> None:
        """A request of a client left the batch for good."""
        self._lengths.learn(client, output_tokens)

    def expected_tokens(self, request: EngineRequest) -> int:
        """Output that the request is expected to have at its end."""
        most: int = request.sampling_params.max_new_tokens
        if not most or request.sampling_params.ignore_eos:
            return most  # its length is known
        client = self._client_of(request)
        longest = None if client is None else self._lengths.longest(client)
        if longest is None or len(request.output_ids) >= longest:
            return most
        return min(longest, most)

    def lower(self, requests: Iterable[EngineRequest]) -> Limits:
        """Set the limits that SGLang's estimates read to what is expected; returns those to `restore` right after the estimate.

        SGLang has no place for an expectation. Nothing is generated in between, so the true limits hold.
        """
        limits = []
        for request in requests:
            parameters, expected = request.sampling_params, self.expected_tokens(request)
            if expected != parameters.max_new_tokens:
                limits.append((parameters, parameters.max_new_tokens))
                parameters.max_new_tokens = expected
        return limits


def restore(limits: Limits) -> None:
    """Undo `Reservations.lower`. Requests of one call may share their parameters."""
    for parameters, most in reversed(limits):
        parameters.max_new_tokens = most
