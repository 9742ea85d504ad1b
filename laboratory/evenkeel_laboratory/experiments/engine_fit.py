"""Fits a cost profile to a recording: from the token counts that replicas reported and the times of their answers.

Between the first and the last byte of a streamed answer, a replica decodes and now and then prefills a prompt of another
request. So that time is a sum of terms of the engine model (`profiles`) with known factors:

    time = D0·steps + D1·steps·batch + D2·steps·KV tokens + P0·prompts + P1·extend tokens of those prompts

The coefficients that fit best, none negative, are the profile. Every second answer fits them, the others measure the error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from evenkeel_contract.recording import RequestLine
from evenkeel_simulator.engine.profiles import CostProfile
from numpy.typing import NDArray

# Half of them fit five coefficients, the other half measures the error.
LEAST_ANSWERS = 40
LEAST_TOKENS = 8
_FLOOR_MS = 1e-6  # a profile needs both times above 0
_Floats = NDArray[np.float64]


class FitError(ValueError):
    """A recording that determines no profile; the message gives the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A profile and how well it explains answers that did not take part in the fit."""

    profile: CostProfile
    answers: int
    median_error: float
    """Median error of the decode time of an answer, as a part of it."""
    total_error: float
    """Relative error of the sum of all decode times; above 0: the profile is too slow."""
    peak_kv_tokens: int
    """Most tokens that running requests of a replica held at once, besides those that they found in the cache."""


@dataclass(frozen=True, slots=True)
class _Answer:
    replica: str
    first_s: float
    end_s: float
    extend_tokens: int
    input_tokens: int
    output_tokens: int


def fit_profile(requests: Sequence[RequestLine]) -> Fit:
    """Fit a profile to a recording; raises `FitError`."""
    answers = _answers(requests)
    usable = [one for one in answers if one.output_tokens >= LEAST_TOKENS]
    if len(usable) < LEAST_ANSWERS:
        raise FitError(
            f"the recording has {len(usable)} streamed answers of at least {LEAST_TOKENS} tokens, and a fit needs "
            f"{LEAST_ANSWERS}; record for longer, or name a profile with --profile"
        )
    by_replica: defaultdict[str, list[_Answer]] = defaultdict(list)
    for one in answers:
        by_replica[one.replica].append(one)
    rows: list[list[float]] = []
    times_ms: list[float] = []
    peak = 1
    for of_replica in by_replica.values():
        load = _Load(of_replica)
        peak = max(peak, load.peak_kv)
        for one in of_replica:
            if one.output_tokens >= LEAST_TOKENS:
                rows.append(load.factors(one))
                times_ms.append((one.end_s - one.first_s) * 1e3)
    factors, times = np.array(rows), np.array(times_ms)
    # Every other answer is held back, so that the errors are those of answers the fit did not see.
    found = _non_negative(factors[::2], times[::2])
    predicted = factors[1::2] @ found
    held = times[1::2]
    decode_ms, request_ms, kv_ms, prefill_ms, token_ms = (float(one) for one in found)
    return Fit(
        profile=CostProfile(
            prefill_ms=prefill_ms,
            prefill_token_ms=max(token_ms, _FLOOR_MS),
            decode_ms=max(decode_ms, _FLOOR_MS),
            decode_request_ms=request_ms,
            decode_kv_token_ms=kv_ms,
            kv_tokens=peak,
        ),
        answers=len(usable),
        median_error=float(np.median(abs(predicted - held) / held)),
        total_error=float(predicted.sum() / held.sum() - 1.0),
        peak_kv_tokens=peak,
    )


def _answers(requests: Sequence[RequestLine]) -> list[_Answer]:
    """The streamed answers."""
    return [
        _Answer(
            one.replica,
            one.arrival_s + one.ttft_s,
            one.arrival_s + one.duration_s,
            one.input_tokens - one.cached_tokens,
            one.input_tokens,
            one.output_tokens,
        )
        for one in requests
        if one.ttft_s is not None and one.streamed and one.duration_s > one.ttft_s
    ]


class _Load:
    """What one replica did over time: its batch, the KV tokens of it, and its prefills."""

    def __init__(self, answers: Sequence[_Answer]) -> None:
        steps: list[tuple[float, int, int, int]] = []
        for one in answers:
            # Half of the output: the mean of what the request holds while it decodes.
            tokens, own = (
                each + one.output_tokens // 2 for each in (one.input_tokens, one.extend_tokens)
            )
            steps += [(one.first_s, 1, tokens, own), (one.end_s, -1, -tokens, -own)]
        steps.sort()
        self._at_s = [at_s for at_s, *_ in steps]
        batch, kv, own_kv = np.cumsum(np.array(steps)[:, 1:], axis=0).T
        self.peak_kv = int(own_kv.max(initial=1))
        spans = np.diff(np.array(self._at_s))
        self._batch_s = np.concatenate(([0.0], np.cumsum(batch[:-1] * spans)))
        self._kv_s = np.concatenate(([0.0], np.cumsum(kv[:-1] * spans)))
        prefills = sorted((one.first_s, one.extend_tokens) for one in answers)
        self._prefill_s = [at_s for at_s, _ in prefills]
        self._extend = np.concatenate(([0], np.cumsum([tokens for _, tokens in prefills])))

    def factors(self, one: _Answer) -> list[float]:
        """Factors of the five coefficients, in the order of the module's formula."""
        steps = one.output_tokens - 1
        span_s = one.end_s - one.first_s
        first = bisect_right(self._at_s, one.first_s) - 1
        last = bisect_right(self._at_s, one.end_s) - 1
        batch = float(self._batch_s[last] - self._batch_s[first]) / span_s
        kv = float(self._kv_s[last] - self._kv_s[first]) / span_s
        begun = bisect_right(self._prefill_s, one.first_s)
        until = bisect_right(self._prefill_s, one.end_s)
        extend = float(self._extend[until] - self._extend[begun])
        return [steps, steps * batch, steps * kv, until - begun, extend]


def _non_negative(factors: _Floats, times: _Floats) -> _Floats:
    """Least squares of relative errors without negative coefficients: the most negative one is dropped until none is left."""
    scaled, ones = factors / times[:, None], np.ones(len(times))
    kept = [column for column in range(factors.shape[1]) if factors[:, column].any()]
    while True:
        found = np.linalg.lstsq(scaled[:, kept], ones, rcond=None)[0]
        worst = int(found.argmin())
        if found[worst] >= 0:
            break
        del kept[worst]
    whole = np.zeros(factors.shape[1])
    whole[kept] = found
    return whole
