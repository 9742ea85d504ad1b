"""What replicas hold of a request's beginning, as far as the router knows: a map from prefixes to replicas.

A prompt is cut into blocks, and the hash of each block is the seed of the next one's. So the hash of block k stands for the whole
prefix up to its end, and one dictionary holds a forest of prefixes without pointers. Only whole blocks count: the rest of a prompt
is not matched. The hash is 64 bits wide and not cryptographic. A collision, even a forged one, sends a request to a replica without
its prefix. It does not change what a replica computes, since engines match tokens, not hashes.

A match starts at the shortest prefix and stops where no replica is left. So a gap after an eviction ends the match.

Memory is bounded by `max_blocks` over all replicas. The clock algorithm makes room, an approximation of "least recently
used" without links between entries: a hand goes round the entries and removes the first that was not inserted again
since its last visit. The blocks of one prompt are stored longest prefix first, so that the hand removes leaves before
their roots.

What would take long is also offered in steps of `STEP_BLOCKS`, between which all else may happen: `matching`, `inserting`, `evicting`.
Without anything in between they do the same as `match`, `insert` and `evict`.

Only `insert`, at dispatch, counts as use, because it shows where a prefix is computed. A match does not.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate, groupby, repeat, takewhile
from operator import and_
from struct import iter_unpack
from sys import byteorder
from typing import Final

from xxhash import xxh3_64_intdigest

from evenkeel_fairshare.fleet.contract import ReplicaSet, slots_of
from evenkeel_fairshare.prefix.columns import Columns
from evenkeel_fairshare.prefix.matching import NO_MATCH, STEP_BLOCKS, Depths, Match, depths

DEFAULT_BLOCK_BYTES = 256  # about 64 tokens of English, and 128 hashes for a prompt of 8k tokens

_64_BITS = 2**64 - 1


def text_blocks(
    text: str | bytes, *, block_bytes: int = DEFAULT_BLOCK_BYTES, seed: int = 0
) -> list[int]:
    """Prefix hashes of a text's whole blocks of `block_bytes` UTF-8 bytes, shortest prefix first.

    Texts with different seeds never share a prefix: one seed per model or adapter.
    """
    if block_bytes < 1:
        raise ValueError(f"block_bytes is {block_bytes}; it must be at least 1")
    # Lone surrogates are legal in JSON strings, so a request with one must not fail.
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    whole = len(data) - len(data) % block_bytes
    blocks = iter_unpack(f"{block_bytes}s", data[:whole])
    return [seed := xxh3_64_intdigest(block, seed) for (block,) in blocks]


def token_blocks(tokens: Sequence[int], *, block_tokens: int, seed: int = 0) -> list[int]:
    """Prefix hashes of whole blocks of `block_tokens` token ids (each in 32 bits)."""
    data = array("I", tokens)
    return text_blocks(data.tobytes(), block_bytes=block_tokens * data.itemsize, seed=seed)


@lru_cache(maxsize=4096)
def namespace_seed(name: str) -> int:
    """The seed of `text_blocks` for a namespace of the cache: an adapter, a salt; 0 for none."""
    return xxh3_64_intdigest(name.encode()) if name else 0


def sglang_blocks(tokens: Sequence[int], *, page_tokens: int, cache_salt: str = "") -> list[int]:
    """The hashes of the whole pages of a prompt in SGLang's KV events, unsigned, shortest prefix first.

    Each is the first 8 bytes, big endian, of SHA-256 over the digest of the page before and the page's token
    ids. Before the first page there is the digest of the salt, or nothing without one; ids have 32 bits, little endian
    (SGLang 0.5.21–0.5.23, `mem_cache/utils.py`: `get_hash_str`, `hash_str_to_int64`, `compute_node_event_hash_values`). That is
    the chain of requests without `extra_key` and adapter, and of engines without EAGLE, whose pages are of pairs of tokens.
    """
    if page_tokens < 1:
        raise ValueError(f"page_tokens is {page_tokens}; it must be at least 1")
    ids = array("I", tokens)
    if byteorder == "big":
        ids.byteswap()
    data, page_bytes = ids.tobytes(), page_tokens * ids.itemsize
    digest = sha256(b"sglang-cache-salt-v1\0" + cache_salt.encode()).digest() if cache_salt else b""
    hashes = []
    for end in range(page_bytes, len(data) + 1, page_bytes):
        digest = sha256(digest + data[end - page_bytes : end]).digest()
        hashes.append(int.from_bytes(digest[:8], "big"))
    return hashes


def vllm_blocks(tokens: Sequence[int], *, page_tokens: int, cache_salt: str = "") -> list[int]:
    """The hashes of the whole pages of a prompt in vLLM, with `--prefix-caching-hash-algo sha256_cbor`.

    Each is the last 8 bytes, big endian, of SHA-256 over the canonical CBOR of (digest of the page before, token ids, extra keys). The
    first page has `_VLLM_ROOT` before it, and the salt as its extra key (vLLM 0.32, `v1/core/kv_cache_utils.py`: `hash_block_tokens`,
    `generate_block_hash_extra_keys`). That is the chain of requests without adapter and media, and of engines without
    `PYTHONHASHSEED`.
    """
    if page_tokens < 1:
        raise ValueError(f"page_tokens is {page_tokens}; it must be at least 1")
    head = _cbor(_ARRAY, page_tokens)
    digest = _VLLM_ROOT
    extra = b"\x81\x82" + _cbor_text("cache_salt") + _cbor_text(cache_salt) if cache_salt else _NULL
    hashes = []
    for end in range(page_tokens, len(tokens) + 1, page_tokens):
        page = b"".join([_cbor_id(token) for token in tokens[end - page_tokens : end]])
        digest = sha256(b"\x83\x58\x20%b%b%b%b" % (digest, head, page, extra)).digest()
        hashes.append(int.from_bytes(digest[-8:], "big"))
        extra = _NULL
    return hashes


_ARRAY, _TEXT, _NULL = 0x80, 0x60, b"\xf6"
"""CBOR's major types 4 and 3, and its null (RFC 8949); numbers have type 0."""
_VLLM_ROOT = sha256(b"\x6evllm-none-hash").digest()


@lru_cache(maxsize=2**18)
def _cbor_id(token: int) -> bytes:
    return _cbor(0, token)


def _cbor_text(text: str) -> bytes:
    data = text.encode()
    return _cbor(_TEXT, len(data)) + data


def _cbor(kind: int, number: int) -> bytes:
    """The head of an item: its major type, and a number in as few bytes as possible. Raises `OverflowError` below 0 and from 2**32 on."""
    if 0 <= number < 24:
        return bytes((kind | number,))
    size = 1 if number < 2**8 else 2 if number < 2**16 else 4
    return bytes((kind | 23 + size.bit_length(),)) + number.to_bytes(size, "big")


def unsigned(hashes: Iterable[int]) -> list[int]:
    """Unsigned hashes for an index, from an engine's signed ones."""
    return [key & _64_BITS for key in hashes]


DEFAULT_MAX_BLOCKS: Final = 2_000_000  # about 200 MB

_USED = 1  # bit 0 of an entry: inserted again since the hand came by; column c is bit c + 1
_CHANCES = 32  # entries spared per block inserted: bounds the pause when everything was used
_SWEEP = 4  # entries cleaned per block inserted and replica that left
_MOST_SWEPT = 8192  # entries cleaned in one go


class PrefixIndex:
    """Prefix hash → replicas. Deterministic; independent of time."""

    def __init__(
        self, *, max_blocks: int = DEFAULT_MAX_BLOCKS, columns: Columns | None = None
    ) -> None:
        """`columns`: shared with another index, so that entries of both can be compared."""
        if max_blocks < 1:
            raise ValueError(f"max_blocks is {max_blocks}; it must be at least 1")
        self._max_blocks = max_blocks
        self._columns = Columns() if columns is None else columns
        self._entries: dict[int, int] = {}  # hash → replicas' columns << 1 | used
        self._ring = array("Q")  # the same hashes, in the order in which the hand visits them
        self.entry_of: Callable[[int, int], int] = self._entries.get
        """Looks up one block, with what there is instead."""
        self._hand = 0
        self._departed = 0  # entry bits of replicas that left and may still be found in entries
        self._departing: deque[tuple[int, int]] = deque()
        """The columns of replicas that left, and `_swept` at that time."""
        self._swept = 0  # places that the broom has visited
        self._broom = 0
        self._held: defaultdict[int, int] = defaultdict(int)  # by column
        self._displaced = 0  # entry bits

    def __len__(self) -> int:
        """Entries in memory, at most `max_blocks`. Emptied ones count until the hand comes by."""
        return len(self._entries)

    @property
    def unswept(self) -> int:
        """Number of entries that may still contain departed replicas. Later inserts clean them."""
        if not self._departing:
            return 0
        # A whole turn of the present ring, wherever it grew meanwhile.
        return len(self._ring) - (self._swept - self._departing[-1][1])

    @property
    def displaced(self) -> ReplicaSet:
        """Replicas that lost blocks to those of others since they were last dropped."""
        return self._columns.slots(self._displaced)

    def held(self, slot: int) -> int:
        """Number of blocks that `slot` is known to hold; 0 for a departed replica."""
        column = self._columns.of.get(slot)
        return 0 if column is None else self._held.get(column, 0)

    def entries(self, hashes: Sequence[int]) -> Iterable[int]:
        """The entries of blocks; 0 for one that is not known."""
        return map(self._entries.get, hashes, repeat(0))

    def match(self, hashes: Sequence[int], among: ReplicaSet) -> Match:
        """The longest prefix that any replica of `among` holds, and the replicas that hold it. O(depth)."""
        columns = self._columns
        first = among << 1 if columns.are_slots else columns.bits(among)
        entries = map(self._entries.get, hashes, repeat(0))
        # What is held before the first block, then up to the end of each, as long as a replica holds it.
        held = list(takewhile(bool, accumulate(entries, and_, initial=first)))
        if len(held) < 2:
            return NO_MATCH
        last = held[-1]
        return Match(
            len(held) - 1, ReplicaSet(last >> 1) if columns.are_slots else columns.slots(last)
        )

    def matching(self, hashes: Sequence[int], among: ReplicaSet) -> Generator[None, None, Depths]:
        """`match` in steps, for each replica of `among`."""
        return depths(self.entries, self._columns, hashes, among)

    def lacking(self, hashes: Sequence[int], slot: int) -> list[int]:
        """The `hashes` that `slot` lacks, in their order. O(blocks)."""
        column = self._columns.of.get(slot)
        return list(hashes) if column is None else self.lacking_in(hashes, column)

    def lacking_in(self, hashes: Sequence[int], column: int) -> list[int]:
        """`lacking`, for a replica by its column."""
        replica = 2 << column
        entry_of = self._entries.get
        return [key for key in hashes if not entry_of(key, 0) & replica]

    def insert(self, hashes: Sequence[int], slot: int) -> None:
        """`slot` holds (or is about to compute) the whole prompt. O(blocks)."""
        column = self._columns.of.get(slot)
        if column is None:
            column = self._columns.assign(slot)
        if self._departed:
            self._sweep(len(hashes))
        if len(hashes) > self._max_blocks:
            hashes = hashes[: self._max_blocks]
        fresh = self._use(hashes, column)
        if fresh:
            self._add(fresh, column)

    def inserting(self, hashes: Sequence[int], slot: int) -> Generator[None]:
        """`insert` in steps. It ends where the replica leaves."""
        column = self._columns.assign(slot)
        return self.inserting_in(hashes, column, self._columns.replica(column))

    def inserting_in(self, hashes: Sequence[int], column: int, replica: int) -> Generator[None]:
        """`inserting`, for a replica by its column and number."""
        hashes = hashes[: self._max_blocks]
        fresh: list[int] = []
        for start in range(0, len(hashes), STEP_BLOCKS):
            some = hashes[start : start + STEP_BLOCKS]
            if self._departed:
                self._sweep(len(some))
            if self._columns.replica(column) == replica:
                fresh += self._use(some, column)
            yield
        # As in one go, the longest prefix first.
        for end in range(len(fresh), 0, -STEP_BLOCKS):
            if self._columns.replica(column) == replica:
                self._add(fresh[max(0, end - STEP_BLOCKS) : end], column)
            yield

    def _use(self, hashes: Sequence[int], column: int) -> list[int]:
        """Note the replica, and the use, in the entries that exist. Returns the other `hashes`."""
        entries = self._entries
        replica = 2 << column
        mark = replica | _USED
        fresh: list[int] = []
        gained = start = 0
        # Neighbours mostly have the same replicas: a run of them is noted in one step, and shares one int. The run is read before
        # its entries change, and the next one afterwards; so a block that comes twice in a prompt is counted once.
        for entry, run in groupby(map(entries.get, hashes)):
            end = start + len(list(run))
            if entry is None:
                fresh += hashes[start:end]
            elif entry & mark != mark:
                used = dict.fromkeys(hashes[start:end], entry | mark)
                entries.update(used)
                if not entry & replica:
                    gained += len(used)
            start = end
        self._held[column] += gained
        return fresh

    def _add(self, fresh: Sequence[int], column: int) -> None:
        """Store blocks that had no entry a while ago, the last one first."""
        entries, ring = self._entries, self._ring
        replica = 2 << column
        # Without those that come twice in one prompt: a collision, which any client can forge.
        new = dict.fromkeys(reversed(fresh), replica)
        if len(ring) + len(new) <= self._max_blocks and entries.keys().isdisjoint(new):
            ring.extend(new)
            entries.update(new)
            self._held[column] += len(new)
            return
        gained = 0
        for key in new:
            entry = entries.get(key)
            if entry is None:
                self._place(key)
                entries[key] = replica
                gained += 1
            elif not entry & replica:  # stored meanwhile for another replica
                entries[key] = entry | replica | _USED
                gained += 1
        self._held[column] += gained

    def evict(self, hashes: Sequence[int], slot: int) -> None:
        """`slot` dropped these blocks; unknown hashes are ignored."""
        column = self._columns.of.get(slot)
        if column is not None:
            self._evict(hashes, column)

    def _evict(self, hashes: Sequence[int], column: int) -> None:
        entries = self._entries
        replica = 2 << column
        lost = 0
        for key in hashes:
            entry = entries.get(key, 0)
            if entry & replica:
                entries[key] = entry ^ replica
                lost += 1
        self._held[column] -= lost

    def evicting(self, hashes: Sequence[int], slot: int) -> Generator[None]:
        """`evict` in steps. It ends where the replica leaves."""
        column = self._columns.of.get(slot)
        if column is None:
            return self._evicting((), 0, 0)
        return self._evicting(hashes, column, self._columns.replica(column))

    def _evicting(self, hashes: Sequence[int], column: int, replica: int) -> Generator[None]:
        for start in range(0, len(hashes), STEP_BLOCKS):
            if self._columns.replica(column) == replica:
                self._evict(hashes[start : start + STEP_BLOCKS], column)
            yield

    def truncate(self, hashes: Sequence[int], blocks: int, slot: int) -> None:
        """`slot` holds no more than the first `blocks` of this prompt.

        For a request that ended before its prompt was computed: its blocks were inserted at dispatch. After a
        completed request this call is wrong, however few tokens were cached: the replica now holds the prompt.
        """
        self.evict(hashes[blocks:], slot)

    def truncating(self, hashes: Sequence[int], blocks: int, slot: int) -> Generator[None]:
        """`truncate` in steps."""
        return self.evicting(hashes[blocks:], slot)

    def drop(self, slot: int) -> None:
        """The replica in `slot` is gone with its cache. O(1): later inserts clean its entries.

        No match returns them, also where the slot is used again before.
        """
        column = self._columns.retire(slot)
        if column is not None:
            self.depart(column)

    def depart(self, column: int) -> None:
        """The replica with a retired column is gone."""
        bit = 2 << column
        self._displaced &= ~bit
        if self._held.pop(column, 0):
            self._departing.append((column, self._swept))
            self._departed |= bit
        else:
            self._columns.cleaned(column)

    def _place(self, key: int) -> None:
        """Find a place in the ring for a new key; evicts where the index is full.

        A used entry is spared once. After `_CHANCES` spared entries the next one is evicted, used or not.
        """
        ring, entries = self._ring, self._entries
        if len(ring) < self._max_blocks:
            ring.append(key)
            return
        for _ in range(_CHANCES):
            candidate = ring[self._hand]
            entry = entries[candidate]
            if not entry & _USED:
                break
            entries[candidate] = entry ^ _USED
            self._hand = self._next(self._hand)
        losing = entries.pop(ring[self._hand]) & ~self._departed & ~_USED
        self._displaced |= losing
        for column in slots_of(ReplicaSet(losing >> 1)):
            self._held[column] -= 1
        ring[self._hand] = key
        self._hand = self._next(self._hand)

    def _sweep(self, blocks: int) -> None:
        """Clean some places of the ring of departed replicas, before so many blocks are inserted."""
        ring, entries, keep = self._ring, self._entries, ~self._departed
        places = min(_SWEEP * blocks * len(self._departing), self.unswept, _MOST_SWEPT)
        for _ in range(places):
            self._broom = self._next(self._broom)
            key = ring[self._broom]
            entry = entries[key]
            if entry & self._departed:
                entries[key] = entry & keep
        self._swept += places
        while self._departing and self._swept - self._departing[0][1] >= len(ring):
            column, _ = self._departing.popleft()
            self._departed ^= 2 << column
            self._columns.cleaned(column)

    def _next(self, place: int) -> int:
        return place + 1 if place + 1 < len(self._ring) else 0
