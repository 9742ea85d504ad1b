"""Requests that their clients left while a replica had them, without a token: they show a silence where no request stays for long."""

from __future__ import annotations

from typing import Final, NamedTuple

from evenkeel_fairshare.verdict import SILENT_S

LEAST_S: Final = 0.5
"""Time at a replica from which a request without a token shows anything. Editors leave sooner, with the next key."""
KEPT_S: Final = 60.0
"""Time after which runs are forgotten, once another one begins."""


class Run(NamedTuple):
    """Requests that followed each other, and none of them got a token."""

    first_s: float
    """When the first of them was sent."""
    last_s: float
    """When the last client left."""
    tokens: int
    """Input tokens of the longest of them."""


class Abandoned:
    """The newest run of each replica. Times are of one clock that only grows."""

    def __init__(self) -> None:
        self.runs: dict[tuple[str, bool], Run] = {}
        """(URL of the replica, whether the requests were streams) → the run."""

    def add(
        self, url: str, sent_s: float, left_s: float, *, stream: bool, tokens: int, content_s: float
    ) -> None:
        """A client left without a token. `content_s`: when the replica sent content last, to any client."""
        if left_s - sent_s < LEAST_S:
            return
        before = self.runs.get((url, stream))
        if before is None or before.last_s < max(content_s, sent_s - SILENT_S):
            self.runs = {key: run for key, run in self.runs.items() if left_s - run.last_s < KEPT_S}
            before = Run(sent_s, left_s, 0)
        first_s, longest = min(before.first_s, sent_s), max(before.tokens, tokens)
        self.runs[url, stream] = Run(first_s, left_s, longest)
