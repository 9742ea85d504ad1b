"""Heads of requests that came before: clients send the same bytes again and again, with another length.

Libraries of clients, and proxies for one client, repeat every byte of a head, apart from the digits of `Content-Length`. Such a head
need not be parsed and checked again. What has another byte anywhere, or does not arrive as exactly one request, is parsed. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct
from multidict import CIMultiDict, istr

MAX_HEADS: Final = 1024
"""Heads that are kept, of all connections together."""
MAX_HEAD_BYTES: Final = 2048
"""Larger heads are not kept."""
_CONTENT_LENGTH: Final = istr("Content-Length")
_NAME: Final = b"\r\ncontent-length: "
_LENGTH: Final = re.compile(_NAME + rb"([0-9]{1,9})\r\n", re.IGNORECASE)
_MARK: Final = _NAME[-7:]  # whichever way the client writes the rest
_END: Final = b"\r\n\r\n"
_MOST_DIGITS: Final = 9


class KnownHead(Struct, frozen=True):
    """A head that was parsed and checked."""

    behind: bytes
    """The bytes behind the digits of the length, to the end of the head."""
    method: str
    target: str
    headers: CIMultiDict[str]


class KnownHeads:
    """The heads, by their bytes before the digits of the length."""

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}

    def find(self, data: bytes) -> tuple[KnownHead, CIMultiDict[str], bytes] | None:
        """A known head, its headers with the length in `data`, and the body, if `data` is exactly one request; None: parse it."""
        start = data.find(_MARK, 0, MAX_HEAD_BYTES) + len(_MARK)
        known = self._heads.get(data[:start])
        if known is None:
            return None
        end = data.find(b"\r", start, start + _MOST_DIGITS + 1)
        if not data.startswith(known.behind, end):
            return None
        body = data[end + len(known.behind) :]
        length = str(len(body))
        if data[start:end] != length.encode():  # to write it is quicker than to read it
            return None
        headers = known.headers.copy()
        headers[_CONTENT_LENGTH] = length
        return known, headers, body

    def keep(self, data: bytes, *, method: str, target: str, headers: CIMultiDict[str]) -> None:
        """Keep the head of `data`, if that is exactly one request, which was parsed as this."""
        start, end = data.find(_MARK) + len(_MARK), data.find(_END, 0, MAX_HEAD_BYTES)
        length = _LENGTH.match(data, start - len(_NAME))
        if end < 0 or length is None:
            return
        digits, begin = length[1].decode(), end + len(_END)
        if headers.getall(_CONTENT_LENGTH, ()) != [digits] or len(data) - begin != int(digits):
            return
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()  # clients choose their heads: the table must not grow without end
        self._heads[data[:start]] = KnownHead(
            data[length.end(1) : begin], method, target, headers.copy()
        )
