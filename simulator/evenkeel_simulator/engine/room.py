"""Whether one more request may join the batch: the number of requests, slots for adapters, prefixes that others compute, and memory.

The policy proposes a request. It enters, or the answer says what is missing.
"""

from __future__ import annotations

from evenkeel_fairshare.replica.contract import AdmissionResult

from evenkeel_simulator.engine.adapters import AdapterSlots
from evenkeel_simulator.engine.admission import (
    Admission,
    HistoryAdmission,
    Reservation,
    SGLangAdmission,
)
from evenkeel_simulator.engine.batch import Batch
from evenkeel_simulator.engine.config import AdmissionMaker, AdmissionRule, EngineConfig
from evenkeel_simulator.engine.memory import Memory
from evenkeel_simulator.engine.prefills import Prefills
from evenkeel_simulator.engine.request import EngineRequest, RequestError, State


class Room:
    """The room in the batch and the prefills of one engine."""

    def __init__(
        self,
        config: EngineConfig,
        memory: Memory,
        *,
        prefills: Prefills,
        batch: Batch,
        follows: bool,
    ) -> None:
        """`follows`: requests follow the cache while they wait."""
        self.adapters = AdapterSlots(config.adapters_per_batch)
        self.rule = _rule(config.admission, memory.capacity)
        self._config = config
        self._memory = memory
        self._prefills = prefills
        self._batch = batch
        self._follows = follows
        self._full = False  # memory did not suffice, and none has been released since
        self.ran_out = False
        """Whether memory did not suffice for a request in this pass. SGLang asks for no other one then."""
        self.missing_tokens = 0
        """Tokens by which the free memory was too small for the last request."""
        self._rule_has_begun = self._has_admitted = False  # in this pass

    @property
    def running(self) -> int:
        """Requests in the batch and in prefill."""
        return len(self._batch.requests) + len(self._prefills.requests)

    @property
    def is_closed(self) -> bool:
        """Whether no request may enter until one leaves."""
        full = self._full and not self._config.retry_when_full
        return full or self.running >= self._config.max_running

    @property
    def is_full(self) -> bool:
        """Whether memory did not suffice in the last pass, and none was released since."""
        return self._full

    def reopen(self) -> None:
        """The next pass tries again."""
        self._full = False

    def check(self, request: EngineRequest) -> None:
        """Raise `RequestError` if the request could never enter."""
        request.check(self._memory.capacity)
        self.rule.begin((), 0)
        if self.rule.missing(request, request.input_tokens, self._memory.capacity):
            raise RequestError(f"input_tokens is {request.input_tokens}: no empty batch takes it")

    def begin_pass(self) -> None:
        """A pass of admissions begins."""
        self._rule_has_begun = self._has_admitted = self.ran_out = False

    def enter(
        self, request: EngineRequest, now_s: float, whole_tokens: int | None = None
    ) -> AdmissionResult:
        """Admit a waiting request, or answer why not.

        `whole_tokens`: a prompt in chunks waits, so the request has to compute all it lacks in this iteration, which has so many
        tokens left. None: it may be cut into chunks.
        """
        if not self.adapters.fits(request.adapter):
            return AdmissionResult.NO_SLOT
        extend_tokens = self._memory.claim(request)
        if not self._rule_has_begun:  # not earlier: in many passes all requests have to wait
            self._begin_rule()
        refusal = self._refusal(request, extend_tokens, whole_tokens)
        if refusal is not None:
            self._memory.unclaim(request, follow=self._follows)
            return refusal
        self._memory.take(request, extend_tokens)
        self.rule.admit(request)
        request.enter(extend_tokens, now_s)
        self._has_admitted = True
        return AdmissionResult.ADMITTED

    def _refusal(
        self, request: EngineRequest, extend_tokens: int, whole_tokens: int | None
    ) -> AdmissionResult | None:
        """Why it cannot enter. None: it can."""
        if self._prefills.compute_prefix_of(request):
            return AdmissionResult.LATER
        if whole_tokens is not None and extend_tokens > whole_tokens:
            # After another one it may fit into the next iteration.
            return AdmissionResult.LATER if self._has_admitted else AdmissionResult.HELD
        self.missing_tokens = self.rule.missing(request, extend_tokens, self._memory.available)
        if not self.missing_tokens:
            return None
        if whole_tokens is not None:
            return AdmissionResult.LATER
        # SGLang records this in the running batch; the batch of this pass does not have it.
        self._full = len(self._batch.requests) > 0
        self.ran_out = True
        return AdmissionResult.NO_ROOM

    def leave(self, request: EngineRequest, *, keep: bool) -> None:
        """A request leaves batch or prefill; `keep`: see `Memory.release`."""
        if request.state is State.RUNNING:
            self._batch.remove(request)
        else:
            self._prefills.remove(request)
        self._memory.release(request, keep=keep)
        self.adapters.leave(request.adapter)
        # Every request that leaves gives memory back, so the next pass tries again.
        self._full = False

    def _begin_rule(self) -> None:
        self.rule.begin(self._batch.requests, self._batch.possible_tokens)
        for request in self._prefills.requests:
            self.rule.admit(request)
        self._rule_has_begun = True


def _rule(rule: AdmissionRule | AdmissionMaker, kv_tokens: int) -> Admission:
    """A fresh rule for one engine."""
    if rule is AdmissionRule.RESERVATION:
        return Reservation()
    if rule is AdmissionRule.SGLANG:
        return SGLangAdmission()
    if rule is AdmissionRule.HISTORY:
        return HistoryAdmission()
    return rule(kv_tokens)
