"""Judges one replica's process by the outcomes of its requests (R20). Pure: times are passed in, seconds of one clock.

| state     | sequences that the router sends there             | ended by                                                |
|-----------|---------------------------------------------------|---------------------------------------------------------|
| new       | at most `NEW`                                     | the first answer: trusted; evidence of failures: suspect|
| trusted   | any number                                        | evidence of failures: suspect                           |
| suspect   | none; one probe after each rest                   | a probe that answers: returning; one that fails: a rest |
| returning | at most 2, and one more after each answer         | `RETURNED` of them: trusted; one failure: suspect       |
|           |                                                   | no request came for ten probes of its health: trusted   |

**Evidence** is a sequential test (Page's CUSUM, Biometrika 1954) of two shares of failures: that of the other replicas, at least
`USUAL_SHARE`, against `FAILING_SHARE`. Each outcome adds the logarithm of its likelihood ratio, never below 0. So two failures in a
row are enough where others hardly fail, and where all fail alike no number is.

**First tokens** are overdue by the same rule as TCP's retransmissions (RFC 6298): the smoothed mean and four times its deviation.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

USUAL_SHARE: Final = 0.05
"""Share of failures that a replica may have, however few others have."""
FAILING_SHARE: Final = 0.5
SUSPECT_AT: Final = 4.5
"""Logarithm of the likelihood ratio, about 90 to 1. A failure adds 2.3 where others have the usual share."""
_SUCCESS: Final = log((1 - FAILING_SHARE) / (1 - USUAL_SHARE))
MEMORY: Final = 64
"""Answers that count at a failure; older ones, and failures with them, count less."""

LONGEST_S: Final = 5.0
"""Longest rest between two probes: bounds how late the router notices that the replica works again."""
NEW: Final = 4
"""Sequences at a time of a process that has not begun any answer, while other replicas hold fewer than they may."""
RETURNED: Final = 8
"""Sequences at a time from which on a replica that returns is trusted."""


def most_suspects(replicas: int) -> int:
    """Most replicas of a fleet that may be suspect at a time: half of them, rounded up, and never the last one."""
    return min(replicas - 1, (replicas + 1) // 2)


class Evidence(NamedTuple):
    """One failure of a replica."""

    kind: str
    """One word of few, for metrics."""
    why: str
    """Description for people."""


class FirstToken(Protocol):
    """The first content of a stream."""

    @property
    def first_token(self) -> tuple[float, int]:
        """Seconds since the dispatch of the request, and tokens of its prompt."""


class FirstTokenTimes(Struct):
    """Times from the dispatch of a stream to its first content, and the lengths of the prompts."""

    mean_s: float = 0.0
    deviation_s: float = 0.0
    mean_tokens: float = 0.0
    count: int = 0

    def learn(self, seen: Iterable[tuple[float, int]]) -> None:
        """First tokens came: after how many seconds, of prompts with how many tokens."""
        mean_s, deviation_s, mean_tokens = self.mean_s, self.deviation_s, self.mean_tokens
        count = self.count
        for time_s, input_tokens in seen:
            if count:
                deviation_s += (abs(time_s - mean_s) - deviation_s) * 0.25
                mean_s += (time_s - mean_s) * 0.125
                mean_tokens += (input_tokens - mean_tokens) * 0.125
            else:
                mean_s, deviation_s, mean_tokens = time_s, time_s / 2, input_tokens
            count += 1
        self.mean_s, self.deviation_s, self.mean_tokens = mean_s, deviation_s, mean_tokens
        self.count = count

    def overdue_s(self, input_tokens: int) -> float:
        """Time after which the first token of such a prompt is overdue, in proportion for one that is longer than usual."""
        longer = max(1.0, input_tokens / max(1.0, self.mean_tokens))
        return (self.mean_s + 4.0 * self.deviation_s) * longer


class Standing:
    """One process of a replica, as the outcomes of its requests show it."""

    __slots__ = (
        "_first_rest_s",
        "_judged",
        "_rest_until_s",
        "_rests",
        "_score",
        "allowed",
        "answers",
        "begun_s",
        "breaks_off",
        "evidence",
        "failures",
        "first_tokens",
        "probing",
        "seen",
    )  # fmt: skip

    def __init__(self, first_rest_s: float = 1.0, *, is_new: bool = False) -> None:
        """`first_rest_s`: the rest before the first probe, which doubles up to `LONGEST_S`. `is_new`: the process has not answered yet."""
        self._first_rest_s = first_rest_s
        self._rest_until_s = 0.0
        self._rests = 0
        self._score = 0.0
        self.answers = 0.0
        """Answers that the replica began and did not break off, of about the last `MEMORY` outcomes; the router counts them up."""
        self._judged = 0.0
        """`answers` at the last failure."""
        self.begun_s = 0.0
        """When it last began an answer."""
        self.breaks_off = False
        """Whether it broke off an answer, and has not shown since that it goes on."""
        self.seen: list[FirstToken] = []
        """First tokens that are not in `first_tokens` yet."""
        self.failures = 0.0
        """Requests that it failed."""
        self.allowed: int | None = NEW if is_new else None
        """Sequences that a replica which returns, or is new, may hold at a time; 0: it is suspect. None: it is trusted."""
        self.probing = False
        """Whether a suspect has a probe."""
        self.evidence: Evidence | None = None
        """The failure that made the replica suspect; None: it is trusted."""
        self.first_tokens = FirstTokenTimes()

    def failed(self, share_of_others: float) -> bool:
        """The replica failed a request. Returns whether it is to be suspect. `share_of_others`: their share of failures."""
        if self.evidence is not None:
            self.failures += 1
            return True
        self._score = max(0.0, self._score + (self.answers - self._judged) * _SUCCESS)
        if self.answers > MEMORY:
            self.failures *= MEMORY / self.answers
            self.answers = MEMORY
        self._judged = self.answers
        self.failures += 1
        self._score += max(0.0, log(FAILING_SHARE / max(USUAL_SHARE, share_of_others)))
        return self._score >= SUSPECT_AT

    def learn(self) -> list[tuple[float, int]]:
        """Learn the first tokens that were seen since the last time, and return them."""
        if not self.seen:
            return []
        seen, self.seen = [one.first_token for one in self.seen], []
        self.first_tokens.learn(seen)
        return seen

    def suspect(self, evidence: Evidence, now_s: float) -> float:
        """The replica gets nothing but probes. Returns its rest before the next one, seconds."""
        # The exponent has a bound, because 2.0 ** 1024 overflows.
        rest_s = min(LONGEST_S, self._first_rest_s * 2.0 ** min(self._rests, 32))
        self._rests += 1
        self._rest_until_s = now_s + rest_s
        self.allowed, self.evidence = 0, evidence
        return rest_s

    @property
    def is_new(self) -> bool:
        """Whether the process has not begun any answer, and few requests are sent there at a time."""
        return self.allowed is not None and self.evidence is None

    @property
    def suspicion(self) -> str:
        """Why the replica gets few requests or none, for people; empty: it is trusted."""
        if self.evidence is None:
            return ""
        state = "suspect" if self.allowed == 0 else "returning"
        return f"{state}: {self.evidence.why}"

    def wants_probe(self, now_s: float) -> bool:
        """Whether the suspect has rested, and has no probe."""
        return self.allowed == 0 and not self.probing and now_s >= self._rest_until_s

    def begun(self) -> bool:
        """A replica that is not trusted begins to answer a request. Returns whether it is trusted from now on."""
        self.allowed = max(2, (self.allowed or 0) + 1)
        if self.allowed < RETURNED and self.evidence is not None:
            return False
        self.trust()
        return True

    def trust(self) -> None:
        """All evidence is dropped: the replica returned, or is the last one."""
        self.allowed = self.evidence = None
        self._score, self._rests = 0.0, 0
