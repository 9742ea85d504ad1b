"""What each client has of one engine: time (design R13) and memory (R16), as far as the engine divides them."""

from __future__ import annotations

from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.engine_time import EngineTime, PassTurns
from evenkeel_fairshare.replica.memory_shares import MemoryShares


class Shares:
    """One engine's accounts of time and memory, each None where it is not divided."""

    def __init__(self, *, time: EngineTime | None, memory: MemoryShares | None) -> None:
        self.time = time
        self.memory = memory
        self.turns = PassTurns(time)

    def restarted(self) -> Shares:
        """New accounts with the same settings, in which nothing happened yet."""
        return Shares(
            time=None if self.time is None else self.time.restarted(),
            memory=None if self.memory is None else self.memory.restarted(),
        )

    # The way of a request

    def opened(self, request: Request) -> None:
        """A request arrived."""
        if self.time is not None:
            self.time.open(request)
        if self.memory is not None:
            self.memory.opens(request)

    def started(self, request: Request) -> None:
        """A request enters its prefill, with `extend_tokens` to compute."""
        if self.time is not None:
            self.time.starts(request)
        if self.memory is not None:
            self.memory.starts(request)

    def decoding(self, request: Request, *, tokens: int = 1) -> None:
        """The prefill of a request is complete, with its first `tokens`."""
        if self.time is not None:
            self.time.decodes(request)
        if self.memory is not None:
            self.memory.decodes(request, tokens=tokens)

    def stopped(self, request: Request) -> None:
        """A request leaves the batch, at its end or before."""
        if self.time is not None:
            self.time.stops(request)
        if self.memory is not None:
            self.memory.stops(request)

    def closed(self, request: Request) -> None:
        """A request ended; it had left the batch."""
        if self.time is not None:
            self.time.close(request)
        if self.memory is not None:
            self.memory.closes(request)

    # Answers

    def turn_of_others(self, request: Request, chunk: Request | None) -> AdmissionResult | None:
        """Why no request of this one's client may enter in this pass. `chunk`: the prompt in chunks that waits. None: it may."""
        if self.turns.must_wait(request):
            is_own = chunk is not None and chunk.client == request.client
            return AdmissionResult.CLIENT_HELD if is_own else AdmissionResult.CLIENT_LATER
        if self.memory is not None and self.memory.must_wait(request):
            return AdmissionResult.CLIENT_LATER
        return None

    def should_wait(self, request: Request) -> bool:
        """Whether others go before the next chunk of a prompt."""
        return self.time is not None and self.time.should_wait(request)

    def must_wait(self, request: Request) -> bool:
        """Whether the next chunk of a prompt has to wait for decode steps."""
        return self.time is not None and self.time.must_wait(request)

    def lacks(self, request: Request, missing_tokens: int) -> None:
        """A request found no room; the free memory is too small by `missing_tokens`."""
        if self.memory is not None:
            self.memory.lacks(request, missing_tokens)

    def end_pass(self) -> None:
        """The pass of admissions ended."""
        if self.memory is not None:
            self.memory.end_pass()

    def wants_pass(self, now_s: float) -> bool:
        """While memory is full: whether a pass has to follow for clients below their shares of it."""
        return self.memory is not None and self.memory.wants_pass(now_s)

    def given_back(self) -> list[Request]:
        """Running requests that have to go back to the queue now."""
        return [] if self.memory is None else self.memory.given_back()

    def is_above_share(self, request: Request) -> bool:
        """Whether the client of a running request holds more than its share of the memory."""
        return self.memory is not None and self.memory.is_above_share(request)
