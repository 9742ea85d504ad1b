"""SGLang's waiting queue, of which one walk is the policy's pass."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType

from evenkeel_plugin.request import EngineRequest


class WaitingQueue(list[EngineRequest]):
    """SGLang's waiting queue. One walk over it is the policy's pass; every other use sees the list.

    The engine walks it once per pass (`for req in self.waiting_queue`), with its own checks of memory in the
    loop's body: so the pass can answer each of them before it proposes the next request. Other functions of
    SGLang's may walk it before, which must not use up the pass: `walker` is the function with the loop.
    """

    def __init__(
        self,
        waiting: Iterable[EngineRequest],
        proposals: Iterator[EngineRequest],
        walker: CodeType | None = None,
    ) -> None:
        """The walk of `walker` over the queue is the pass; without a `walker` it is the first walk."""
        super().__init__(waiting)
        self._proposals: Iterator[EngineRequest] | None = proposals
        self._walker = walker

    def __iter__(self) -> Iterator[EngineRequest]:
        proposals = self._proposals
        if proposals is None or self._walker not in {None, sys._getframe(1).f_code}:
            return super().__iter__()
        self._proposals = None
        return proposals

    def disarm(self) -> None:
        """End the pass, walked or not."""
        self._proposals = None
