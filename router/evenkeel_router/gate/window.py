"""How many requests a replica may have that have not begun to answer (R12).

A streamed request has begun with its first event. So the streamed requests that have not begun are those in the engine's queue and
those in prefill, and their number bounds the queue while the batch may grow as far as the engine's memory allows. A whole answer
shows no beginning. Such a request counts until its end, in a window of its own.

The limit follows latency, as in TCP Vegas (Brakmo, Peterson 1995). The pace of a request is its delay over its work: seconds from
its dispatch to its first event, or to its whole answer, per token of work. Work is counted in tokens of prefill: the uncached
tokens of the request and of those that were sent before and had not begun, `FIXED_TOKENS`, and `OUTPUT_TOKENS` for each output
token of a whole answer. Prefill and decode alone give similar paces; time in the engine's queue raises the pace.

| event                                            | limit                                          |
|--------------------------------------------------|------------------------------------------------|
| start, and each new process of the replica       | the floor                                      |
| pace within the tolerance, and a request waits   | one more; after the first cut one per window   |
| pace above the tolerance times the best          | half, at least the floor; once per window      |

A stream that ends leaves a place in the batch. Until another one begins, the window takes one more for it. Otherwise the place would
be free until a begin is seen here, and streams that end together would be replaced one by one.

An engine that orders its queue by prefix (`lpm`) may pass over one request as long as others come. So while the oldest request
that has not begun was overtaken by `most_overtakes` others, no streamed request is sent. That ends when it begins, or when a
request ends beside it alone: then a place was free, and the engine had another reason. From then on the engine counts as one that
prefers long matches, and a request waits while one with a much shorter match has not begun.

The unit is the sequence: prompts times answers to each (R19). A request of several sequences goes to the replica when all of them fit;
one that is larger than the window goes alone. While it waits for that, others go before it, until they had as many sequences as it
has; then the window is reserved for it. The beginning of its last sequence does not show, so it counts as a whole answer.

Where several routers use the replica, floor and limit are this router's part of them; one request is always allowed.

The best pace is the lowest seen. While the limit is the floor, it rises by `FORGETTING` with each request up to the paces seen
there, because workloads change and predictions of cached tokens err. Above the floor it does not rise: the window itself could be
the cause of slower paces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

from evenkeel_fairshare.replica.contract import Request

FIXED_TOKENS: Final = 256
"""Work of a request beyond its tokens: a prefill of no tokens takes about as long as some hundred tokens."""
OUTPUT_TOKENS: Final = 64
"""A decode step takes as long as a prefill of some tens of tokens."""
FORGETTING: Final = 1.01  # 70 requests at the floor double the best pace
LARGEST: Final = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRules:
    """Parameters of one window."""

    floor: int
    """The smallest limit, requests. The engine always has as many to choose its next batch from."""
    tolerance: float
    """Highest pace without a cut, in best paces."""
    fills_places: bool = False
    """Whether a request that began keeps a place until it ends."""
    most_overtakes: float = inf
    """Requests that may begin before one that was sent earlier."""
    longer_match: float = 1.25
    """A match longer by this factor overtakes, at an engine that prefers long matches. Predictions of equal prefixes differ less."""


STREAMED: Final = WindowRules(floor=2, tolerance=2.0, fills_places=True, most_overtakes=2)
"""One request computes its prompt while the next one waits. More of them are of use while one prefill can take all of them (`prompts`)."""
WHOLE: Final = WindowRules(floor=4, tolerance=4.0)
"""A larger batch lengthens each answer, so a longer answer alone does not show a queue."""


@dataclass(slots=True, eq=False)
class GatedRequest(Request):
    """A request at a gate."""

    streams: bool = True
    """Whether its answer comes as events, so that its beginning is seen."""
    sequences: int = 1
    """Sequences that the engine computes for it."""
    lent: bool = False
    """Whether it stands for a request of another router, which has its place."""
    is_outside: bool = False
    """Whether it has no account at this gate: another router ordered and charged it, or does not have to be asked for the place."""


@dataclass(slots=True, eq=False)
class Window:
    """The window of one process of a replica, for one kind of answer. Times are seconds of one clock."""

    rules: WindowRules
    limit: float = field(init=False)
    part: float = 1.0
    """Part of the replica that this router may use, from 0 to 1."""
    best_pace: float = inf
    """Seconds per token of work; infinite before the first request has begun."""
    _sent: dict[GatedRequest, tuple[float, int]] = field(default_factory=dict)
    """Requests that have not begun: when each was sent, and the uncached tokens ahead of it, its own included."""
    reserved: GatedRequest | None = None
    """A request of several sequences that waits for the window; no other one of its kind goes before it."""
    _count: int = 0
    """Sequences of the requests that have not begun."""
    _tokens: int = 0
    _free_places: int = 0
    """Streams that ended, less those that began since."""
    _overtakes: int = 0
    """Requests that began while the oldest one of `_sent` had not."""
    _prefers_matches: bool = False
    """Whether the engine has passed over a request `most_overtakes` times."""
    _slow_start: bool = True
    _cut_s: float = -inf

    def __post_init__(self) -> None:
        self.limit = float(self.rules.floor)

    def __len__(self) -> int:
        return self._count

    @property
    def has_room(self) -> bool:
        """Whether another request of one sequence may be sent."""
        return self.takes(self.limit)

    def takes(self, limit: float, sequences: int = 1) -> bool:
        """Whether another request may be sent if so many sequences may be without an answer."""
        count, rules, part = self._count + sequences, self.rules, self.part
        if self._overtakes >= rules.most_overtakes:
            return False
        if count <= max(1, round(rules.floor * part)):
            return True
        most = int((limit + self._free_places) * part)
        return count <= most or not self._count  # one that is larger than the window goes alone

    def would_overtake(self, request: GatedRequest) -> bool:
        """Whether the engine would take this request before one that was sent earlier."""
        if not self._prefers_matches or not self._sent:
            return False
        shortest = min(one.matched_tokens for one in self._sent)
        return request.matched_tokens > self.rules.longer_match * shortest

    def sent(self, request: GatedRequest, now_s: float) -> None:
        """A request goes to the replica."""
        self._tokens += request.extend_tokens
        self._count += request.sequences
        self._sent[request] = (now_s, self._tokens)

    def left(self, request: GatedRequest) -> None:
        """A request has begun or ended."""
        is_oldest = next(iter(self._sent), None) is request
        if self._sent.pop(request, None) is not None:
            self._tokens -= request.extend_tokens
            self._count -= request.sequences
            if is_oldest:
                self._overtakes = 0
            return
        self._free_places += self.rules.fills_places
        if len(self._sent) <= 1:  # it left its place to the only one that waits there
            self._overtakes = 0

    def queue_is_long(self) -> None:
        """The engine says so: no place is free."""
        self._free_places = 0

    def begun(
        self, request: GatedRequest, now_s: float, *, output_tokens: int, others_wait: bool
    ) -> None:
        """A request has begun. `output_tokens`: of a whole answer, else 0; `others_wait`: a larger window would be used."""
        if request not in self._sent:
            return
        oldest = next(iter(self._sent))
        sent = self._sent.pop(request)
        self._tokens -= request.extend_tokens
        self._count -= request.sequences
        if self._free_places:
            self._free_places -= 1
        if oldest is request:
            self._overtakes = 0
        else:
            self._overtakes += 1
            self._prefers_matches |= self._overtakes >= self.rules.most_overtakes
        sent_s, tokens_ahead = sent
        # Its sequences decode at the same time.
        work = FIXED_TOKENS + tokens_ahead + OUTPUT_TOKENS * output_tokens / request.sequences
        pace = (now_s - sent_s) / work
        is_least = self.limit <= self.rules.floor
        self.best_pace = min(pace, self.best_pace * (FORGETTING if is_least else 1.0))
        if pace > self.rules.tolerance * self.best_pace:
            self._cut(sent_s, now_s)
        elif others_wait:
            # 1 / limit for each of `limit` begins: one more in a whole window.
            self.limit = min(LARGEST, self.limit + (1.0 if self._slow_start else 1.0 / self.limit))

    def _cut(self, sent_s: float, now_s: float) -> None:
        self._slow_start = False
        self._free_places = 0
        if sent_s >= self._cut_s:  # else it was sent under the limit before the last cut
            self.limit = max(float(self.rules.floor), self.limit / 2)
            self._cut_s = now_s
