"""A prompt in chunks that waits, so that requests of other clients can enter the batch or decode (design R13).

SGLang has one such prompt at a time, and continues it in each prefill until it is complete. Its memory stays reserved while it waits.
A pass without it works as if there was none, so no other prompt may be cut into chunks meanwhile.

SGLang decodes nothing until the prompt is complete, so it does not check the memory for the next chunk, and ends if there is none. Where
requests decode meanwhile, they leave the memory for the rest of the prompt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from evenkeel_fairshare.replica.contract import AdmissionResult
from evenkeel_plugin.request import EngineRequest, context_tokens, prefix_tokens
from evenkeel_plugin.scheduling import Scheduling

WHOLE: Final = 1 << 40
"""Alignment of chunks with which SGLang cuts none: more tokens than any prompt has."""

CLIPPED: Final = int(os.environ.get("SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "4096"))
"""The most output of a request that SGLang's estimates count."""


@contextmanager
def waits(scheduler: Any, scheduling: Scheduling) -> Iterator[None]:
    """The prompt in chunks waits: SGLang does not see it."""
    chunk, scheduler.chunked_req = scheduler.chunked_req, None
    alignment, scheduler.truncation_align_size = scheduler.truncation_align_size, WHOLE
    scheduling.chunk_waits = chunk
    # SGLang would not count the adapter of the prompt in chunks, and might load too many. So no request enters.
    held: list[EngineRequest] = []
    if scheduler.enable_lora:
        held, scheduler.waiting_queue = scheduler.waiting_queue, held
    try:
        yield
    finally:
        if held:  # requests whose grammar became ready were added meanwhile
            scheduler.waiting_queue = [*held, *scheduler.waiting_queue]
        scheduling.chunk_waits = None
        scheduler.truncation_align_size = alignment
        scheduler.chunked_req = chunk


def refusal_beside(adder: Any, request: Any, chunk: Any) -> AdmissionResult | None:
    """Why a request cannot enter while `chunk` waits: it has to be cut into chunks itself, or it leaves too little memory for the
    rest of that prompt and its output. None: it can."""
    page_tokens = adder.page_size
    extend_tokens = -(-_rest_tokens(request) // page_tokens) * page_tokens
    if extend_tokens > adder.rem_chunk_tokens:
        return AdmissionResult.HELD if not adder.can_run_list else AdmissionResult.LATER
    needed_tokens = extend_tokens + _rest_tokens(chunk) + 2 * page_tokens
    needed_tokens += _expected_tokens(request) + _expected_tokens(chunk)
    return AdmissionResult.LATER if needed_tokens >= adder.rem_total_tokens else None


def reserved_tokens(scheduler: Any, tokens: int = 1 << 40) -> int:
    """Memory for the rest of the prompt in chunks, or for its next `tokens`; 0 without one. Pools with sliding windows have a check of
    SGLang's own."""
    chunk = scheduler.chunked_req
    if chunk is None or scheduler.is_hybrid_swa:
        return 0
    page_tokens: int = scheduler.page_size
    begun = max(prefix_tokens(chunk), getattr(chunk, "extend_end", None) or 0)  # memory is there
    return -(-min(tokens, context_tokens(chunk) - begun) // page_tokens) * page_tokens + page_tokens


def free_tokens(allocator: Any, tree_cache: Any) -> int:
    """Tokens of the pool that are free or can be evicted."""
    cached = (
        tree_cache.full_evictable_size if tree_cache.supports_mamba() else tree_cache.evictable_size
    )
    return int(allocator.available_size() + cached())


def missing_tokens(adder: Any, request: Any) -> int:
    """Tokens by which the free memory is too small for a request that found no room; at least 1."""
    needed_tokens = _rest_tokens(request) + _expected_tokens(request) + adder.page_size
    return max(1, 1 + int(needed_tokens - adder.rem_total_tokens))


def _rest_tokens(request: Any) -> int:
    """Input that is not computed."""
    return context_tokens(request) - prefix_tokens(request)


def _expected_tokens(request: Any) -> int:
    """Output to come, as SGLang estimates it."""
    most: int = request.sampling_params.max_new_tokens or 0  # None: no output at all
    return min(most, CLIPPED) - len(request.output_ids)
