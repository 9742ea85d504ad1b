"""The rules of the VTC paper's artifact, which reproduce the paper's Tables 2 to 6: its accounts, its admission, its engine.

Its accounts differ from Algorithm 2 in three ways that change results. No client is lifted into an empty queue. Ties go to
the client that was seen first. Output is charged by passes: every request pays for one token before a decode pass, the first
token of a prefill pass is free, and a pass in which any request finishes is charged a second time, after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, Final

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.vtc import Counter, Vtc
from evenkeel_simulator.engine.admission import Admission
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.request import EngineRequest

from evenkeel_laboratory.policies.vtc_oracle import drawn_length

PROMPT_TOKENS: Final = 2
"""The artifact's prompt of n words has n + 2 tokens: a first one, and a last for the space at the end. Its accounts charge them."""


class ArtifactVtc(Vtc):
    """VTC with the artifact's accounts. It forgets no client, and Lemma 4.3 is not true for it."""

    def progress(self, request: Request, tokens: int) -> None:
        pass  # see `decoding`

    def progress_all(self, requests: Collection[Request], tokens: int) -> None:
        pass  # see `decoding`

    def decoding(self, batch: Sequence[Request]) -> None:
        """Charge before the pass, with the length so far. So a client that arrives during the pass is lifted to a counter
        that has paid for it."""
        for request in batch:
            self._charge(self._running[request], self._token_cost(request, request.output_tokens))

    def forwarded(self, batch: Sequence[Request], *, finished: bool) -> None:
        if finished:
            self.decoding(batch)

    def _input_cost(self, request: Request) -> float:
        return self._cost.input_cost(request.input_tokens + PROMPT_TOKENS)

    def _output_cost(self, request: Request, before: int, after: int) -> float:
        return self._cost.output_cost(request.input_tokens + PROMPT_TOKENS, before, after)

    def _token_cost(self, request: Request, number: int) -> float:
        return self._output_cost(request, number - 1, number)

    def _tie(self, client: str) -> int:
        return len(self._accounts)

    def _lift(self, counter: Counter) -> None:
        least = self._queued.find()
        if least is not None:
            counter.rank = max(counter.rank, least.rank)

    def _forget(self) -> None:
        pass


class ArtifactLcf(ArtifactVtc):
    """Least counter first with the artifact's accounts."""

    name: ClassVar[str] = "LCF"

    def _lift(self, counter: Counter) -> None:
        pass


class ArtifactPredict(ArtifactVtc):
    """VTC with length prediction and the artifact's accounts: a pass charges a request beyond its prediction only."""

    name: ClassVar[str] = "VTCPredict"

    def __init__(self, *, cost: Cost | None = None) -> None:
        super().__init__(cost=cost)
        self._predicted: dict[Request, int] = {}
        """Prepaid output tokens of each running request."""
        self._mean: dict[str, float] = {}
        """Client → mean of its output lengths: the first, then four parts of the mean and one of the new length."""

    def leave(self, request: Request, now_s: float) -> None:
        counter = self._running.get(request)
        if counter is not None:
            self._refund(request, counter)
            made = request.output_tokens
            mean = self._mean.get(request.client)
            self._mean[request.client] = made if mean is None else (4 * mean + made) / 5
        super().leave(request, now_s)

    def _admit(self, request: Request, counter: Counter) -> None:
        super()._admit(request, counter)
        self._predicted[request] = self._predict(request)
        self._charge(counter, self._output_cost(request, 0, self._predicted[request]))

    def _refund(self, request: Request, counter: Counter) -> None:
        made, predicted = request.output_tokens, self._predicted.pop(request)
        if made < predicted:
            self._charge(counter, -self._output_cost(request, made, predicted))
            if counter.waiting:
                self._queued.add(counter)

    def _token_cost(self, request: Request, number: int) -> float:
        return super()._token_cost(request, number) if number > self._predicted[request] else 0.0

    def _predict(self, request: Request) -> int:
        return round(self._mean.get(request.client, 0.0))


class ArtifactOracle(ArtifactPredict):
    """The rows "oracle" and "±50 %": the true length, or one drawn around it, as `OracleVtc` draws it."""

    name: ClassVar[str] = "VTCOracle"

    def __init__(self, *, cost: Cost | None = None, error: float = 0.0, seed: int = 0) -> None:
        super().__init__(cost=cost)
        self._error = error
        self._seed = seed

    def _predict(self, request: Request) -> int:
        drawn = drawn_length(request, error=self._error, seed=self._seed)
        return super()._predict(request) if drawn is None else drawn


class ArtifactAdmission(Admission):
    """Admits while the peak of the batch, lengths known, stays below the pool.

    Peak = max over j of remaining_j·j + Σ_{i<=j} held_i, requests by remaining tokens descending. The last output token of
    a request takes no memory, so it is no remaining one. 32 tokens
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

    def begin(self, batch: Iterable[EngineRequest], possible_tokens: int) -> None:
        batch = list(batch)
        self._held = [(r.remaining_tokens - 1, r.context_tokens + PROMPT_TOKENS) for r in batch]
        self._clients = {request.client for request in batch}
        self._input_tokens = 0

    def missing(self, request: EngineRequest, extend_tokens: int, available: int) -> int:
        over = self._input_tokens + self._prompt(request) - self._batch_max_tokens
        clients = len(self._clients | {request.client})
        limit = self._kv_tokens - self.ADAPTER_TOKENS * clients
        peak = _peak([*self._held, self._newcomer(request)])
        return max(0, over, peak - limit + 1)

    def admit(self, request: EngineRequest) -> None:
        self._held.append(self._newcomer(request))
        self._clients.add(request.client)
        self._input_tokens += self._prompt(request)

    def _prompt(self, request: EngineRequest) -> int:
        return request.input_tokens + PROMPT_TOKENS

    def _newcomer(self, request: EngineRequest) -> tuple[int, int]:
        """(still to come after prefill, held after prefill): prefill makes an output token, the first or after a preemption the next."""
        return (request.remaining_tokens - 1, request.context_tokens + PROMPT_TOKENS + 1)


def _peak(held: Iterable[tuple[int, int]]) -> int:
    peak = total = 0
    for count, (remaining, tokens) in enumerate(sorted(held, reverse=True), start=1):
        total += tokens
        peak = max(peak, remaining * count + total)
    return peak


def artifact_config(*, kv_tokens: int | None = None) -> EngineConfig:
    """The engine that the VTC paper measured: S-LoRA, no prefix cache, peak-aware admission every 10 steps."""
    return EngineConfig(
        kv_tokens=kv_tokens,
        admission=ArtifactAdmission,
        max_running=1000,
        prefill_tokens=None,
        prefix_cache=False,
        decode_steps_between_passes=10,
        isolation=None,
        share_memory=False,
        retry_when_full=True,
    )
