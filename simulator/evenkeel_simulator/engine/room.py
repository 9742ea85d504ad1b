"""Whether one more request may join the batch: the number of requests, slots for adapters, prefixes that others compute, and memory.

The policy proposes a request. It enters, or the answer says what is missing.
"""

from __future__ import annotations

from itertools import chain

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
        self._rule_has_begun = False  # in this pass

    @property
    def running(self) -> int:
        """Requests in the batch and in prefill."""
        return len(self._batch.requests) + len(self._prefills.requests)

    @property
    def is_closed(self) -> bool:
        """Whether no request may enter until one leaves."""
        full = self._full and not self._config.retry_when_full
        return full or self.running >= self._config.max_running

    def check(self, request: EngineRequest) -> None:
        """Raise `RequestError` if the request could never enter."""
        request.check(self._memory.capacity)
        self.rule.begin((), 0)
        if not self.rule.fits(request, request.input_tokens, self._memory.capacity):
            raise RequestError(f"input_tokens is {request.input_tokens}: no empty batch takes it")

    def begin_pass(self) -> None:
        """A pass of admissions begins."""
        self._rule_has_begun = False

    def enter(self, request: EngineRequest, now_s: float, most_tokens: int) -> AdmissionResult:
        """Admit a waiting request, or answer why not. It may compute `most_tokens` at most."""
        if not self.adapters.fits(request.adapter):
            return AdmissionResult.NO_SLOT
        extend_tokens = self._memory.claim(request)
        if not self._rule_has_begun:  # not earlier: in many passes all requests have to wait
            self._begin_rule()
        refusal = None
        if self._prefills.compute_prefix_of(request) or extend_tokens > most_tokens:
            refusal = AdmissionResult.LATER
        elif not self.rule.fits(request, extend_tokens, self._memory.available):
            refusal = AdmissionResult.NO_ROOM
            # SGLang records this in the running batch; the batch of this pass does not have it.
            self._full = len(self._batch.requests) > 0
        if refusal is not None:
            self._memory.unclaim(request, follow=self._follows)
            return refusal
        self._memory.take(request, extend_tokens)
        self.rule.admit(request)
        request.enter(extend_tokens, now_s)
        return AdmissionResult.ADMITTED

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
        begun = list(self._prefills.requests)
        possible_tokens = sum([one.reserved_tokens for one in begun], self._batch.possible_tokens)
        self.rule.begin(chain(begun, self._batch.requests), possible_tokens)
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
