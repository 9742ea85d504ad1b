"""An event of a stream that is too long to be read in one go: passed on as it comes, while the router looks for what it needs. Pure.

Reading it would stop the event loop for 4 ms for each megabyte. What the router needs is in single members: usage, the reason of the
end, an index. Their names are found in any part of the event, because JSON escapes the quotes of a name that is within a text. A member
that the event has twice with different values is not known: answers of `/v1/responses` repeat objects of the client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from evenkeel_router.api.framing import FIELDS, LINE, name_of

OVERLAP_BYTES: Final = 4096
"""The longest member that is found wherever the event is cut."""
HEAD_BYTES: Final = 4096
"""The name of an event is within its first bytes."""
_ERROR: Final = re.compile(rb'data:\s*\{\s*"(?:error"|object":\s*"error")')
_ENDS: Final = (b"\n\n", b"\r\n\r\n")
_END_BYTES: Final = max(map(len, _ENDS))

Facts = Mapping[bytes, re.Pattern[bytes]]
"""Name of a member, in quotes → the pattern of the member, whose first group is the value."""

OBJECT: Final = rb"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
"""An object, and objects in it."""


def facts(**values: bytes) -> Facts:
    """Names of members with the patterns of their values. What follows a value shows that it is whole."""
    return {
        b'"%b"' % name.encode(): re.compile(rb'"%b":\s*(%b)(?=[\s,}])' % (name.encode(), value))
        for name, value in values.items()
    }


class LongEvent:
    """One such event."""

    __slots__ = ("_facts", "_found", "_last", "name", "size_bytes")

    def __init__(self, name: bytes, facts: Facts) -> None:
        self.name = name
        self.size_bytes = 0
        self._facts = facts
        self._last = b""
        self._found: dict[bytes, bytes | None] = {}

    def feed(self, data: bytes) -> int | None:
        """Look at more of it. How many of these bytes belong to the event, if it ends with them; None: it goes on."""
        overlap = self._last[-(_END_BYTES - 1) :]
        seam = overlap + data
        ends = [at + len(end) for end in _ENDS if (at := seam.find(end)) >= 0]
        size = min(ends) - len(overlap) if ends else len(data)
        seen = self._last + data[:size]
        for name, pattern in self._facts.items():
            if seen.find(name) >= 0:
                for value in pattern.findall(seen):
                    if self._found.setdefault(name, value) != value:
                        self._found[name] = None
        self._last = seen[-OVERLAP_BYTES:]
        self.size_bytes += size
        return size if ends else None

    @property
    def members(self) -> bytes:
        """An object of what was found."""
        known = [b"%b:%b" % (name, value) for name, value in self._found.items() if value]
        return b"{%b}" % b",".join(known)


def name_in(head: bytes) -> bytes | None:
    """The name of the event that begins with these bytes, empty if it has none before its data; None: it has no data."""
    lines: list[bytes] = []
    for line in LINE.split(head[:HEAD_BYTES]):
        if line.startswith(b"data:"):
            return name_of(lines)
        if line and not line.startswith(FIELDS):
            return None
        lines.append(line)
    return None


def begins_error(head: bytes) -> bool:
    """Whether an event of OpenAI's without a name that begins with these bytes is an error."""
    return _ERROR.match(head) is not None
