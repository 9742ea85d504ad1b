"""Whether a request fits: three rules for the KV pool, one per kind of engine.

Place in the flow: the policy proposes a request, the engine locks its cached prefix, and the rule answers.
`available` is free plus evictable memory at that moment, so a prefix shared with running requests costs
nothing and one shared with nobody costs what evicting it would have given.

The surprising thing: only `Reservation` makes the papers' theorems true (ALGORITHMS §7 A1): the others let a
client decode more than the pool holds after its last admission.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from evenkeel_simulator.engine.config import AdmissionRule
from evenkeel_simulator.engine.request import EngineRequest

MAX_CLIPPED_TOKENS = 4096
"""SGLang counts no more than this of a request's `max_new_tokens` when it estimates."""


class Admission(Protocol):
    """One engine's rule. `begin` opens a pass over the batch as it is; then `fits` and `admit` alternate."""

    def begin(self, batch: Collection[EngineRequest]) -> None: ...

    def fits(self, request: EngineRequest, extend_tokens: int, available: int) -> bool:
        """Whether the candidate enters now. It alone in an empty engine must fit."""

    def admit(self, request: EngineRequest) -> None:
        """The candidate entered; its extend tokens have left `available`."""

    def decoded(self, steps: int) -> None:
        """Decode steps went by."""

    def retracted(self, remaining: Collection[EngineRequest]) -> None:
        """Memory ran out; these stayed."""


class Reservation:
    """Reserves the whole of every request's possible output: memory never runs out (ALGORITHMS §7 A1)."""

    def __init__(self) -> None:
        self._reserved = 0

    def begin(self, batch: Collection[EngineRequest]) -> None:
        self._reserved = sum([request.reserved_tokens for request in batch])

    def fits(self, request: EngineRequest, extend_tokens: int, available: int) -> bool:
        return extend_tokens + request.reserved_tokens <= available - self._reserved

    def admit(self, request: EngineRequest) -> None:
        self._reserved += request.reserved_tokens

    def decoded(self, steps: int) -> None:
        """Nothing to estimate."""

    def retracted(self, remaining: Collection[EngineRequest]) -> None:
        """Does not happen: what was admitted has its memory."""


class SGLangAdmission:
    """Bets that requests stop early: of what the batch might still produce, only a ratio is set aside.

    The ratio falls from `INITIAL` to `LEAST` over `DECAY_STEPS` decode steps without a retraction, and after
    one is set to what the remaining batch has shown to need (SGLang's `new_token_ratio`, v0.3 and newer).
    Requests of a known length count in full.
    """

    INITIAL = 0.7
    LEAST = 0.7 * 0.14
    DECAY_STEPS = 600
    RETRACT_STEPS = 20
    """Decode steps that those who stay are expected to need, after a retraction."""
    MARGIN_TOKENS = 1
    """Kept back for each newcomer of a pass (a page, in SGLang: of one token)."""

    def __init__(self) -> None:
        self._start = self.INITIAL
        self._steps = 0
        self._reserved = 0.0
        self._retracting = False

    @property
    def new_token_ratio(self) -> float:
        """Share of the possible output that is set aside. A function of the step count, so that many steps
        at once give the very number that single ones give."""
        decay = (self.INITIAL - self.LEAST) / self.DECAY_STEPS
        return max(self.LEAST, self._start - decay * self._steps)

    def begin(self, batch: Collection[EngineRequest]) -> None:
        # `min(r.reserved_tokens, MAX_CLIPPED_TOKENS)`, spelled out: this is most of what a pass costs.
        to_come = sum(
            [
                left
                if (left := r.max_output_tokens - r.output_tokens) < MAX_CLIPPED_TOKENS
                else MAX_CLIPPED_TOKENS
                for r in batch
            ]
        )
        fixed = sum([_to_come(r) for r in batch if r.fixed_length])
        self._reserved = fixed + (to_come - fixed) * self.new_token_ratio

    def fits(self, request: EngineRequest, extend_tokens: int, available: int) -> bool:
        # A newcomer counts in full, as in SGLang; the ratio holds for those who are already in.
        return extend_tokens + _to_come(request) + self.MARGIN_TOKENS < available - self._reserved

    def admit(self, request: EngineRequest) -> None:
        # Within the pass even what a retracted request has produced counts again.
        self._reserved += min(request.max_output_tokens, MAX_CLIPPED_TOKENS) + self.MARGIN_TOKENS

    def decoded(self, steps: int) -> None:
        # The step after a retraction leaves the ratio as it is.
        self._steps += steps - self._retracting
        self._retracting = False

    def retracted(self, remaining: Collection[EngineRequest]) -> None:
        produced = sum([request.output_tokens for request in remaining])
        possible = sum([request.max_output_tokens for request in remaining])
        headroom = self.RETRACT_STEPS * len(remaining)
        self._start = min(1.0, (produced + headroom) / (possible + 1))
        self._steps = 0
        self._retracting = True


def _to_come(request: EngineRequest) -> int:
    return min(request.reserved_tokens, MAX_CLIPPED_TOKENS)


class ArtifactAdmission:
    """The VTC artifact's: admit while the peak of the batch, lengths known, stays below the pool.

    Peak = max over j of remaining_j·j + Σ_{i<=j} held_i, requests by remaining tokens descending; 32 tokens
    per client in the batch are kept back (adapter rank 8 x 4), and one mini-batch prefills at most
    `batch_max_tokens` (VTC_ARTIFACT_FACTS §1.1). Knows true lengths: with it, `max_output_tokens` must be one.
    """

    ADAPTER_TOKENS = 32

    def __init__(self, kv_tokens: int) -> None:
        self._kv_tokens = kv_tokens
        self._batch_max_tokens = max(kv_tokens // 6, 3072)
        self._held: list[tuple[int, int]] = []
        self._clients: set[str] = set()
        self._input_tokens = 0

    def begin(self, batch: Collection[EngineRequest]) -> None:
        self._held = [(r.remaining_tokens, r.context_tokens) for r in batch]
        self._clients = {request.client for request in batch}
        self._input_tokens = 0

    def fits(self, request: EngineRequest, extend_tokens: int, available: int) -> bool:
        if self._input_tokens + request.input_tokens > self._batch_max_tokens:
            return False
        clients = len(self._clients | {request.client})
        limit = self._kv_tokens - self.ADAPTER_TOKENS * clients
        return _peak([*self._held, _newcomer(request)]) < limit

    def admit(self, request: EngineRequest) -> None:
        self._held.append(_newcomer(request))
        self._clients.add(request.client)
        self._input_tokens += request.input_tokens

    def decoded(self, steps: int) -> None:
        """Nothing to estimate."""

    def retracted(self, remaining: Collection[EngineRequest]) -> None:
        """Does not happen: peaks are known."""


def _newcomer(request: EngineRequest) -> tuple[int, int]:
    """(still to come after prefill, held after prefill): prefill makes the first output token."""
    return (request.target_output_tokens - 1, request.input_tokens + 1)


def _peak(held: Iterable[tuple[int, int]]) -> int:
    peak = total = 0
    for count, (remaining, tokens) in enumerate(sorted(held, reverse=True), start=1):
        total += tokens
        peak = max(peak, remaining * count + total)
    return peak


def make_admission(rule: AdmissionRule, kv_tokens: int) -> Admission:
    """A fresh rule for one engine."""
    if rule is AdmissionRule.RESERVATION:
        return Reservation()
    if rule is AdmissionRule.ARTIFACT:
        return ArtifactAdmission(kv_tokens)
    return SGLangAdmission()
