"""The tokens of a call. Equal segments give equal tokens; what a parent answered is taken as it really was. Pure.

A workload only says how long prompts are and what they share. Where a call's prompt continues its parent's (a turn of a
conversation, a node of a tree), the parent's real input and output stand at its front, so that the engine finds in
its cache what it computed; all else is random words, drawn from the segment's key.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from random import Random

from evenkeel_simulator.traffic.workload import Call, Program


class Prompts:
    """One program's prompts, call by call."""

    def __init__(self, program: Program, *, vocabulary: int) -> None:
        """`vocabulary`: token ids from 2 up to it are words."""
        self._program = program
        self._vocabulary = vocabulary
        self._said: dict[int, list[int]] = {}
        """Call → its input and what the engine answered."""

    def input_ids(self, number: int) -> list[int]:
        """The input of a call whose parents have ended."""
        call = self._program.calls[number]
        ids: list[int] = []
        skipped = 0
        for parent in call.after:
            if _continues(call, self._program.calls[parent]) and parent in self._said:
                ids = list(self._said[parent])
                skipped = len(self._program.calls[parent].prompt) + 1
        for segment in call.prompt[skipped:]:
            ids += _words(segment.key, segment.tokens, self._vocabulary)
        return ids

    def answered(self, number: int, input_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        """The result of a call."""
        self._said[number] = [*input_ids, *output_ids]


def _continues(call: Call, parent: Call) -> bool:
    length = len(parent.prompt)
    return (
        parent.output_key is not None
        and len(call.prompt) > length
        and call.prompt[:length] == parent.prompt
        and call.prompt[length] == parent.output
    )


@lru_cache(maxsize=4096)
def _words(key: Hashable, count: int, vocabulary: int) -> tuple[int, ...]:
    rng = Random(repr(key))
    return tuple(rng.randrange(2, vocabulary) for _ in range(count))
