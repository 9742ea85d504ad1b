"""The content of a replica's cache, for a router that missed its KV events (docs/design/kv-events.md). MessagePack.

A router sends a `PagesQuestion` to the reports port and receives one or more `PagesPart`s. The content is the sum of the
published batches, not a walk over the cache. So it equals the state of a router that applied all batches, with any kind of
cache, at less cost. The time stamp of the last batch identifies the history that the batch number belongs to.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Iterator
from sys import byteorder
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from evenkeel_fairshare.prefix.copies import Copies
from evenkeel_fairshare.prefix.index import unsigned

from evenkeel_contract.kvevents import GPU
from evenkeel_contract.messages import check_version, read
from evenkeel_contract.reports import ReportError

PAGES_VERSION: Final = 1
PART_PAGES: Final = 65_536
"""Pages of one part: half a megabyte."""
MAX_PARTS: Final = 256
"""16 million pages: 268 million tokens in pages of 16."""
_HASH_BYTES: Final = 8
# The hashes, and room for the other fields.
MAX_PART_BYTES: Final = PART_PAGES * _HASH_BYTES + 4096


class PagesQuestion(msgspec.Struct, frozen=True, array_like=True, tag="pages"):
    """A router's question for the pages that a replica's cache holds."""

    version: int


class PagesPart(msgspec.Struct, frozen=True, array_like=True, tag="pages"):
    """A part of a replica's answer."""

    version: int
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    """Number of batches published so far, which is the number of the next batch to apply."""
    last_unix_s: float
    """Time stamp of the last published batch."""
    page_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    """Tokens of a page; 0 if no page was ever stored."""
    part: Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTS)]
    parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)]
    pages: Annotated[bytes, msgspec.Meta(max_length=PART_PAGES * _HASH_BYTES)] = b""
    """Hashes as in KV events, 8 bytes each, signed, little endian; parents before children. Further copies follow."""
    trouble: str = ""
    """Why this replica cannot answer; empty if it can."""

    @property
    def hashes(self) -> array[int]:
        """The hashes of `pages`."""
        found = array("q", self.pages)
        if byteorder == "big":
            found.byteswap()
        return found


class PagesSnapshot(NamedTuple):
    """Content of a cache after a batch."""

    sequence: int
    last_unix_s: float
    page_tokens: int
    hashes: list[int]
    """First each page, then a further copy of some."""


class HeldPages:
    """The sum of the batches that a replica has published. One thread writes, any thread reads."""

    def __init__(self) -> None:
        self.trouble = ""
        """Why no batches are recorded; empty if they are."""
        self._lock = threading.Lock()
        self._pages: dict[int, None] = {}  # in the order of their storing
        self._copies = Copies()
        self._batches = 0
        self._last_unix_s = 0.0
        self._page_tokens = 0

    def published(self, time_unix_s: float, events: Iterable[Any]) -> None:
        """Record the next batch. Its events are those of `kvevents`, or SGLang's with the same names."""
        with self._lock:
            self._batches += 1
            self._last_unix_s = time_unix_s
            for event in events:
                self._apply(type(event).__name__, event)

    def _apply(self, kind: str, event: Any) -> None:
        if kind == "AllBlocksCleared":
            self._pages.clear()
            self._copies.clear()
        elif getattr(event, "medium", None) not in (None, GPU):
            return
        elif kind == "BlockStored":
            self._page_tokens = event.block_size
            if getattr(event, "group_idx", None) is not None:  # vLLM's (`kvevents`)
                self._copies.update(page for page in event.block_hashes if page in self._pages)
            self._pages.update(dict.fromkeys(event.block_hashes))
        elif kind == "BlockRemoved":
            for page in event.block_hashes:
                if not self._copies.took(page):
                    self._pages.pop(page, None)

    def take(self) -> PagesSnapshot:
        """Copy the content. The publishing thread waits meanwhile: 8 ms for a million pages."""
        with self._lock:
            hashes = [*self._pages, *self._copies.elements()]
            return PagesSnapshot(self._batches, self._last_unix_s, self._page_tokens, hashes)


def ask() -> bytes:
    """Encode a router's request."""
    return _encoder.encode(PagesQuestion(PAGES_VERSION))


def answer(held: HeldPages) -> Iterator[bytes]:
    """Encode a replica's answer, one message per part."""
    trouble = held.trouble
    sequence, last_unix_s, page_tokens, hashes = held.take()
    if len(hashes) > MAX_PARTS * PART_PAGES:
        trouble, hashes = f"it holds more than {MAX_PARTS * PART_PAGES} pages", []
    # Rounded up. An empty cache is one empty part, since the router waits for an answer.
    parts = max(1, -(-len(hashes) // PART_PAGES))
    for part in range(parts):
        pages = array("Q", unsigned(hashes[part * PART_PAGES : (part + 1) * PART_PAGES]))
        if byteorder == "big":
            pages.byteswap()
        yield _encoder.encode(
            PagesPart(
                PAGES_VERSION,
                sequence,
                last_unix_s,
                page_tokens,
                part,
                parts,
                pages.tobytes(),
                trouble,
            )
        )


def decode_part(data: bytes) -> PagesPart:
    """Read a part of an answer; raises `ReportError`."""
    part = read(_part, data, what="the content of a replica's cache", error=ReportError)
    check_version(part.version, PAGES_VERSION, ReportError)
    if len(part.pages) % _HASH_BYTES:
        raise ReportError(f"{len(part.pages)} bytes are not a multiple of {_HASH_BYTES}")
    return part


def follows(part: PagesPart, first: PagesPart, place: int) -> bool:
    """Whether `part` is part number `place` of the answer that begins with `first`."""
    return part.part == place and _head(part) == _head(first)


def _head(part: PagesPart) -> tuple[float, ...]:
    return part.sequence, part.last_unix_s, part.page_tokens, part.parts


_encoder = msgspec.msgpack.Encoder()
_part = msgspec.msgpack.Decoder(PagesPart)
