"""The requests in prefill: what they compute, and which other requests wait for it."""

from __future__ import annotations

from evenkeel_simulator.engine.iteration import Chunks
from evenkeel_simulator.engine.makers import Makers
from evenkeel_simulator.engine.memory import Memory
from evenkeel_simulator.engine.request import EngineRequest, State


class Prefills:
    """Requests in state PREFILLING, in order of admission."""

    def __init__(self, memory: Memory, *, shared: bool) -> None:
        """`shared`: a request waits while another one computes the prefix that it lacks."""
        self.requests: dict[EngineRequest, None] = {}
        self._memory = memory
        self._makers = Makers() if shared else None

    @property
    def chunk(self) -> EngineRequest | None:
        """The prompt in chunks, between two iterations: all others are computed in the iteration in which they enter."""
        return next(iter(self.requests), None)

    @property
    def pending_tokens(self) -> int:
        """Tokens still to be computed."""
        return sum([request.pending_tokens for request in self.requests])

    def compute_prefix_of(self, request: EngineRequest) -> bool:
        """Whether one of them computes enough of the prefix that `request` lacks."""
        return self._makers is not None and self._makers.work_for(request)

    def add(self, request: EngineRequest) -> None:
        self.requests[request] = None
        self._update_makers(request)

    def remove(self, request: EngineRequest) -> None:
        """Remove an aborted request."""
        del self.requests[request]
        request.pending_tokens = 0
        self._update_makers(request)

    def computed(self, chunks: Chunks) -> list[EngineRequest]:
        """A prefill ended: store what it computed. Returns the requests whose prefill is complete; they are removed."""
        complete = []
        for request, tokens in chunks:
            if request.state is not State.PREFILLING:
                continue  # aborted on the way
            request.pending_tokens -= tokens
            computed_tokens = request.context_tokens - request.pending_tokens
            # After a retraction output is computed again too; only the prompt goes to the cache here.
            self._memory.store(request, min(computed_tokens, request.input_tokens))
            self._update_makers(request)
            if not request.pending_tokens:
                del self.requests[request]
                complete.append(request)
        return complete

    def _update_makers(self, request: EngineRequest) -> None:
        if self._makers is not None:
            self._makers.update(request)
