"""Orders among the requests that DLPM may admit. No bound depends on them (docs/design/0007).

The key of a request is a whole number: the lowest goes first, and among equals the request that arrived first. While a request
waits, its key changes with its match only. So a policy may keep requests sorted.
"""

from __future__ import annotations

from collections.abc import Callable

from evenkeel_fairshare.replica.contract import Request

SortKey = Callable[[Request], int]


def longest_match(request: Request) -> int:
    """The order of LPM."""
    return -request.matched_tokens


def least_work_for_its_match(request: Request) -> int:
    """Uncached minus cached input tokens.

    Long matches go first, as in LPM. Among requests with little in the cache the shortest goes first, where LPM has nearly the
    order of arrival, behind prompts of any length.
    """
    return request.uncached_tokens - request.matched_tokens
