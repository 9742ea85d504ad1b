"""Which requests compute which prefixes right now, so that no pass computes the same one twice.

Calls that fork from one prompt arrive together and lack the same tokens; admitted in one pass, each would compute them.
"""

from __future__ import annotations

from evenkeel_simulator.engine.cache import Node, Segment
from evenkeel_simulator.engine.request import EngineRequest

WORTH_WAITING_TOKENS = 32
"""SGLang's threshold for its own rule against duplicates in a batch."""


class Makers:
    """Requests in prefill by (deepest match, first missing segment)."""

    def __init__(self) -> None:
        self._makers: dict[tuple[Node, Segment], EngineRequest] = {}

    def update(self, request: EngineRequest) -> None:
        """Note that `request` enters prefill, progresses in it or leaves it."""
        if request.making is not None and self._makers.get(request.making) is request:
            del self._makers[request.making]
        request.making = None
        if request.pending_tokens and request.depth < len(request.prompt):
            assert request.node is not None
            request.making = (request.node, request.prompt[request.depth])
            self._makers.setdefault(request.making, request)

    def work_for(self, request: EngineRequest) -> bool:
        """Whether another request computes enough of the missing prefix that `request` should wait."""
        if request.depth >= len(request.prompt):
            return False
        assert request.node is not None
        maker = self._makers.get((request.node, request.prompt[request.depth]))
        if maker is None:
            return False
        shared = 0
        for mine, theirs in zip(
            request.prompt[request.depth :], maker.prompt[request.depth :], strict=False
        ):
            if mine != theirs:
                break
            shared += mine.tokens
            if shared > WORTH_WAITING_TOKENS:
                return True
        return False
