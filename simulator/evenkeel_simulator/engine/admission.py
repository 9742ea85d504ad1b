"""Whether a request fits: the rules for the KV pool, one per kind of engine.

The policy proposes a request, the engine locks its cached prefix, and the rule answers. `available` is free plus
evictable memory at that moment. So a prefix shared with running requests costs nothing, and an unshared one costs what
its eviction would have freed.

Only `Reservation` makes the papers' theorems true (ALGORITHMS §7 A1). `SGLangAdmission` lets a client decode more than the
pool holds after its last admission.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from math import ceil

from evenkeel_fairshare.replica.output_lengths import OutputLengths

from evenkeel_simulator.engine.request import EngineRequest

MAX_CLIPPED_TOKENS = 4096
"""SGLang's estimate counts at most this much of a request's `max_new_tokens`."""


class Admission(ABC):
    """One engine's rule. `begin` opens a pass over the batch as it is; then `missing` and `admit` alternate.

    The other methods do nothing in a rule that has nothing to learn.
    """

    @abstractmethod
    def begin(self, batch: Iterable[EngineRequest], possible_tokens: int) -> None:
        """`possible_tokens`: the most that the batch may produce yet. The rule reads `batch` once at most, in this pass."""

    @abstractmethod
    def missing(self, request: EngineRequest, extend_tokens: int, available: int) -> int:
        """Tokens that the candidate lacks to enter now; 0: it may. In an empty engine it must fit alone."""

    @abstractmethod
    def admit(self, request: EngineRequest) -> None:
        """The candidate entered; its extend tokens have left `available`."""

    def decoded(self, steps: int) -> None:
        """The batch made `steps` decode steps."""

    def retracted(self, remaining: Collection[EngineRequest]) -> None:
        """The engine retracted requests after memory ran out; `remaining` were not retracted."""

    def finished(self, request: EngineRequest) -> None:
        """A request produced its last token."""


class Reservation(Admission):
    """Reserves the whole of every request's possible output: memory never runs out (ALGORITHMS §7 A1)."""

    def __init__(self) -> None:
        self._reserved = 0

    def begin(self, batch: Iterable[EngineRequest], possible_tokens: int) -> None:
        self._reserved = possible_tokens

    def missing(self, request: EngineRequest, extend_tokens: int, available: int) -> int:
        return max(0, extend_tokens + request.reserved_tokens + self._reserved - available)

    def admit(self, request: EngineRequest) -> None:
        self._reserved += request.reserved_tokens


class SGLangAdmission(Admission):
    """Assumes that requests stop early: only a ratio of the batch's possible output is reserved.

    The ratio falls from `INITIAL` to `LEAST` over `DECAY_STEPS` decode steps without a retraction, and after
    one is set to what the remaining batch has shown to need (SGLang's `new_token_ratio`, v0.3 and newer).
    Requests of a known length count in full.
    """

    # SGLang's defaults of the three.
    INITIAL = 0.7
    LEAST = 0.7 * 0.14
    DECAY_STEPS = 600
    RETRACT_STEPS = 20
    """Decode steps that the remaining requests are expected to need, after a retraction."""
    MARGIN_TOKENS = 1
    """Reserved for each request admitted in a pass (SGLang: a page, of one token)."""

    def __init__(self) -> None:
        self._start = self.INITIAL
        self._steps = 0
        self._batch: Iterable[EngineRequest] | None = None
        """Batch to be counted, if the pass needs it: in most passes there is room for all that it may produce."""
        self._reserved = 0.0
        """Output tokens reserved for the batch; not less, until it has been counted."""
        self._admitted = 0
        """Reserved for requests that entered in this pass."""
        self._retracting = False

    @property
    def new_token_ratio(self) -> float:
        """Share of the possible output that is reserved. A function of the step count, so that many steps
        at once give the very number that single ones give."""
        decay = (self.INITIAL - self.LEAST) / self.DECAY_STEPS
        return max(self.LEAST, self._start - decay * self._steps)

    def begin(self, batch: Iterable[EngineRequest], possible_tokens: int) -> None:
        self._batch, self._reserved, self._admitted = batch, possible_tokens, 0

    def missing(self, request: EngineRequest, extend_tokens: int, available: int) -> int:
        # A newcomer counts in full, as in SGLang; the ratio applies to those already in the batch.
        needed = self._admitted + extend_tokens + self._expected(request) + self.MARGIN_TOKENS
        if needed >= available - self._reserved and self._batch is not None:
            self._reserved, self._batch = self._count(self._batch), None
        left = available - self._reserved - needed
        return 0 if left > 0 else 1 + ceil(-left)

    def admit(self, request: EngineRequest) -> None:
        # Within the pass even what a retracted request has produced counts again, as in SGLang.
        self._admitted += min(self._at_end(request), MAX_CLIPPED_TOKENS) + self.MARGIN_TOKENS

    def _count(self, batch: Iterable[EngineRequest]) -> float:
        """What the batch is expected to produce yet."""
        # `_to_come`, spelled out: this is most of what a pass costs.
        batch = list(batch)
        to_come = sum(
            [
                left
                if (left := r.max_output_tokens - r.output_tokens) < MAX_CLIPPED_TOKENS
                else MAX_CLIPPED_TOKENS
                for r in batch
            ]
        )
        fixed = sum([_to_come(r) for r in batch if r.fixed_length])
        return fixed + (to_come - fixed) * self.new_token_ratio

    def decoded(self, steps: int) -> None:
        # The step after a retraction leaves the ratio as it is.
        self._steps += steps - self._retracting
        self._retracting = False

    def retracted(self, remaining: Collection[EngineRequest]) -> None:
        produced = sum([request.output_tokens for request in remaining])
        possible = sum([self._at_end(request) for request in remaining])
        headroom = self.RETRACT_STEPS * len(remaining)
        self._start = min(1.0, (produced + headroom) / (possible + 1))
        self._steps = 0
        self._retracting = True

    def _at_end(self, request: EngineRequest) -> int:
        """Output tokens that a request counts with in all."""
        return request.max_output_tokens

    def _expected(self, request: EngineRequest) -> int:
        """Output tokens that a request is expected to produce yet."""
        return _to_come(request)


class HistoryAdmission(SGLangAdmission):
    """SGLang's rule, but a request counts with the longest output of its client's last requests (design R14).

    So a client that asks for 4096 tokens and produces 128 keeps no others out. Without history, and beyond it, a request counts with
    all that it may produce.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lengths = OutputLengths()

    def _count(self, batch: Iterable[EngineRequest]) -> float:
        # `_expected`, spelled out: this is most of what a pass costs.
        longest_of = self._lengths.longest_by_client.get
        fixed = to_come = 0
        for request in batch:
            output_tokens = request.output_tokens
            left = request.max_output_tokens - output_tokens
            if request.fixed_length:
                fixed += min(left, MAX_CLIPPED_TOKENS)
                continue
            longest = longest_of(request.client)
            if longest is not None and output_tokens < longest < output_tokens + left:
                left = longest - output_tokens
            to_come += left if left < MAX_CLIPPED_TOKENS else MAX_CLIPPED_TOKENS  # noqa: FURB136
        return fixed + to_come * self.new_token_ratio

    def finished(self, request: EngineRequest) -> None:
        self._lengths.learn(request.client, request.output_tokens)

    def _at_end(self, request: EngineRequest) -> int:
        return request.output_tokens + self._expected(request)

    def _expected(self, request: EngineRequest) -> int:
        longest = self._lengths.longest_by_client.get(request.client)
        if request.fixed_length or longest is None or request.output_tokens >= longest:
            return _to_come(request)
        return min(longest - request.output_tokens, _to_come(request))


def _to_come(request: EngineRequest) -> int:
    return min(request.reserved_tokens, MAX_CLIPPED_TOKENS)
