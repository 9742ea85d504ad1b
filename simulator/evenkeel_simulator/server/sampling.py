"""Sampling parameters: how long an answer is, what stops it, and SGLang's checks of the others.

The fields are those of SGLang 0.5.23 that change what a simulator does; all others are ignored, as SGLang ignores fields
it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from evenkeel_simulator.server.bodies import BadRequest

MAX_CHOICES: Final = 128
"""Prompts times `n` of one request: each is a request of its own to the engine."""
MAX_STOPS: Final = 32  # SGLang's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters, checked."""

    max_tokens: int | None
    """Most output tokens; None: the natural length of the answer."""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    keep_stop: bool = False
    n: int = 1
    seed: int | None = None
    """Changes the answer to the same prompt; None: the prompt alone decides."""


class RangedFields(msgspec.Struct, kw_only=True):
    """Fields that are checked and change nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None


_RANGES: Final = (
    # (field, least, greatest, whether the least itself is allowed), as SGLang checks them
    ("temperature", 0.0, float("inf"), True),
    ("top_p", 0.0, 1.0, False),
    ("min_p", 0.0, 1.0, True),
    ("frequency_penalty", -2.0, 2.0, True),
    ("presence_penalty", -2.0, 2.0, True),
    ("repetition_penalty", 0.0, 2.0, False),
)


def _check_ranges(fields: RangedFields) -> None:
    for field, least, greatest, closed in _RANGES:
        value = getattr(fields, field)
        if value is None:
            continue
        if not (least < value <= greatest or (closed and value == least)):
            left = "[" if closed else "("
            raise BadRequest(f"{field} must be in {left}{least}, {greatest}], got {value}.")
    if fields.top_k is not None and fields.top_k < 1 and fields.top_k != -1:
        raise BadRequest(f"top_k must be -1 (disable) or at least 1, got {fields.top_k}.")


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings without empty ones. Raises `BadRequest` for too many."""
    given = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(given) > MAX_STOPS:
        raise BadRequest(f"stop: at most {MAX_STOPS} strings, got {len(given)}")
    return tuple(one for one in given if one)


def checked(fields: RangedFields, sampling: Sampling) -> Sampling:
    """`sampling` itself. Raises `BadRequest` for a value there or in `fields` that SGLang refuses."""
    _check_ranges(fields)
    limit = sampling.max_tokens
    if limit is not None and limit < 1:
        raise BadRequest(f"max_new_tokens must be at least 1, got {limit}.")
    if sampling.min_tokens < 0 or (limit is not None and sampling.min_tokens > limit):
        raise BadRequest(
            f"min_new_tokens must be in [0, max_new_tokens({limit})], got {sampling.min_tokens}."
        )
    if not 1 <= sampling.n <= MAX_CHOICES:
        raise BadRequest(f"n must be from 1 to {MAX_CHOICES}, got {sampling.n}.")
    return sampling
