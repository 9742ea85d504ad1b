"""How much output the requests of each client had: the predictor of VTC (§4.4), and reservations by history (design R14)."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

RECENT: Final = 5
"""The paper's predictor is the mean of this many requests of the client."""


class OutputLengths:
    """Output tokens of the last `RECENT` requests of each client; `remembered`: number of clients."""

    def __init__(self, *, remembered: int = 65_536) -> None:
        self._lengths: OrderedDict[str, deque[int]] = OrderedDict()
        self.longest_by_client: dict[str, int] = {}
        """Client with an ended request → the longest of its recent outputs, tokens. Every pass reads it for every running
        request."""
        self._remembered = remembered

    def learn(self, client: str, output_tokens: int) -> None:
        """A request of a client ended."""
        lengths = self._lengths.get(client)
        if lengths is None:
            lengths = self._lengths[client] = deque(maxlen=RECENT)
        lengths.append(output_tokens)
        self.longest_by_client[client] = max(lengths)
        self._lengths.move_to_end(client)
        if len(self._lengths) > self._remembered:
            del self.longest_by_client[self._lengths.popitem(last=False)[0]]

    def mean(self, client: str) -> int:
        """Mean output of a client's recent requests, whole tokens; 0 before the first request ended."""
        lengths = self._lengths.get(client)
        return round(sum(lengths) / len(lengths)) if lengths else 0
