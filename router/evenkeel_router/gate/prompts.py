"""The prompts that an engine has not computed yet, as far as one router knows (R12).

An engine that serves first come, first served computes the prompts in its queue before that of a request which comes next, several of
them in one step. So a request that is sent there waits for them, whatever its client is owed. Hence few may be on their way.

The first event of a stream shows that its prompt is computed, and those that were sent before it. A whole answer shows nothing. The router
estimates when its prompt is computed: behind those sent before, at the pace of recent streams. The pace of a stream is its delay over the
work on its way to the engine when it was sent, its own included. So where prompts were believed to be computed too early, the next streams
are slow for the work that is known, and the estimates become longer. The best pace ever seen would not do: it is a third too fast, and
when many whole answers end together the error of each prompt adds to that of the next one.

An estimate that is too long would leave the engine idle; so a prompt also counts as computed when nothing waits in the engine
`LEAST_AGE_S` after it was sent. Pure.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final, NamedTuple

from evenkeel_router.gate.window import FIXED_TOKENS, GatedRequest

FEW: Final = 2
"""Prompts that may be on their way, however long: one is computed while the next one waits."""
MOST_TOKENS: Final = 2048
"""Uncached tokens on their way from which on no more than `FEW` may be: one step of an engine. The number is vLLM's smallest default."""
LEAST_AGE_S: Final = 1.0
"""An engine's figures may be as old: SGLang renews them with each prefill, and otherwise every 40 steps."""
RECENT: Final = 17
"""Streams whose pace is kept. The estimate is the pace a third from the lowest: many of the others may have waited for a place in the batch
too."""


class _Prompt(NamedTuple):
    sent_s: float
    tokens: int
    work: int
    """Tokens of work on their way when it was sent, its own included."""
    computed_s: float
    """When it is computed, as estimated; infinite for a stream, which shows it."""


class Prompts:
    """Times are seconds of one clock."""

    def __init__(self) -> None:
        self.part = 1.0
        """Part of the engine that this router may use, from 0 to 1."""
        self._open: dict[GatedRequest, _Prompt] = {}
        """The prompts on their way, in the order in which they were sent."""
        self._tokens = 0
        self._idle_s = 0.0
        """When all of them are computed, as estimated."""
        self._paces: deque[float] = deque(maxlen=RECENT)
        """Seconds per token of work of the last streams."""

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        few = max(1, round(FEW * self.part))
        return len(self._open) < few or self._tokens < MOST_TOKENS * self.part

    @property
    def pace_s(self) -> float:
        """Seconds per token of work, as estimated; infinite before the first stream has begun."""
        return sorted(self._paces)[len(self._paces) // 3] if self._paces else inf

    def sent(self, request: GatedRequest, now_s: float, best_pace_s: float) -> None:
        """A request goes to the replica. `best_pace_s`: seconds per token of work, before a stream has begun; infinite: not known. Then
        whole answers do not count."""
        pace_s = self.pace_s if self._paces else best_pace_s
        if not request.streams and pace_s == inf:
            return
        tokens = request.extend_tokens
        if pace_s < inf:
            self._idle_s = max(self._idle_s, now_s) + (FIXED_TOKENS + tokens) * pace_s
        self._tokens += tokens
        work = self._tokens + FIXED_TOKENS * (1 + len(self._open))
        computed_s = inf if request.streams else self._idle_s
        self._open[request] = _Prompt(now_s, tokens, work, computed_s)

    def begun(self, request: GatedRequest, now_s: float) -> None:
        """The first event of a stream came: the prompts of whole answers before it are computed, too."""
        began = self._open.get(request)
        if began is None:
            return
        if request.streams:
            self._paces.append((now_s - began.sent_s) / began.work)
        for one, prompt in list(self._open.items()):
            if one is request:
                break
            if prompt.computed_s < inf:
                self.left(one)
        self.left(request)
        if not self._open:
            self._idle_s = now_s

    def left(self, request: GatedRequest) -> None:
        """A prompt is computed, or its request is over."""
        prompt = self._open.pop(request, None)
        if prompt is not None:
            self._tokens -= prompt.tokens

    def expire(self, now_s: float) -> None:
        """Drop the prompts of whole answers that are computed by now, as estimated."""
        for request, prompt in list(self._open.items()):
            if prompt.computed_s <= now_s:
                self.left(request)

    def none_waits(self, now_s: float) -> None:
        """Nothing waits in the engine's queue, as it says."""
        for request, prompt in list(self._open.items()):
            if prompt.computed_s < inf and prompt.sent_s <= now_s - LEAST_AGE_S:
                self.left(request)

    def next_s(self) -> float | None:
        """When the next one is computed, as estimated; None: only streams are there, which show it."""
        due_s = min((one.computed_s for one in self._open.values()), default=inf)
        return due_s if due_s < inf else None
