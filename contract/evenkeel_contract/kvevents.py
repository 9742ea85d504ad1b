"""KV events: the blocks that a replica's cache stored and dropped, in the format of SGLang 0.5.21 and vLLM 0.32 and newer (MessagePack).

Live batches use PUB and SUB with frames `[topic, sequence (8 bytes, big endian), batch]`. A batch is
`[timestamp, events, rank]`; each event is a map with a `type`. A ROUTER socket replays kept batches: on a request
`[empty, first sequence]` it sends `[empty, topic, sequence, batch]` for each, and at the end a message with sequence -1.

A reader skips token ids, because hashes are sufficient. It also skips unknown events, fields and ranks, because engines are
upgraded before routers.

vLLM numbers its groups of caches, and SGLang does not. In vLLM, requests that compute equal blocks at the same time keep a copy
each. Each copy is stored and removed by an event of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Final, NamedTuple

import msgspec

from evenkeel_contract.messages import UNREADABLE

GPU: Final = "GPU"
"""The medium that a router follows: the engine's device memory. SGLang also reports `CPU_PINNED` and others."""
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Largest batch. SGLang's largest batches are those of a full prefill: 64k tokens are less than half a megabyte."""
KEPT_BATCHES: Final = 10_000
"""Default number of batches that a replica keeps for replay: SGLang's `buffer_steps`."""
SEQUENCE_BYTES: Final = 8
END_OF_REPLAY: Final = -1
_MAX_SEQUENCE: Final = 2**63 - 1

Hash = int
"""8 bytes of a block's chained SHA-256: the first as a signed number (SGLang), the last as an unsigned one (vLLM)."""
Blocks = Annotated[list[Hash], msgspec.Meta(max_length=4 * 1024 * 1024)]


class PageHash(Enum):
    """How an engine names the pages of its cache."""

    SGLANG = "SGLang"
    VLLM = "VLLM"  # with --prefix-caching-hash-algo sha256_cbor


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks were stored, each the child of the one before."""

    block_hashes: list[int]
    parent_block_hash: int | None
    """Hash of the block before the first one; None at the root."""
    token_ids: list[int]
    block_size: int
    """Tokens of one block: the engine's page size."""
    lora_id: int | None
    medium: str | None = None
    group_idx: int | None = None
    """vLLM's group of caches."""


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks were dropped."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True):
    """Changes since the last batch, as a replica sends them."""

    ts: float
    """Unix time, seconds, by the replica's clock."""
    events: list[Event]
    attn_dp_rank: int | None = 0


class Change(msgspec.Struct, frozen=True):
    """One event as a router reads it, with the fields of all known events."""

    type: str = ""
    block_hashes: Blocks = []
    block_size: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    medium: str | None = None
    group_idx: int | None = None

    @property
    def is_copy(self) -> bool:
        """Whether the blocks may be further copies of stored ones."""
        return self.group_idx is not None

    @property
    def stores(self) -> bool:
        """Blocks came into device memory."""
        return self.type == "BlockStored" and self.medium in (None, GPU)

    @property
    def removes(self) -> bool:
        """Blocks left device memory."""
        return self.type == "BlockRemoved" and self.medium in (None, GPU)

    @property
    def clears(self) -> bool:
        """All blocks left device memory."""
        return self.type == "AllBlocksCleared"


class ReadBatch(msgspec.Struct, array_like=True, frozen=True):
    """A batch as a router reads it."""

    time_unix_s: float
    changes: list[Change]


class _RawBatch(msgspec.Struct, array_like=True, frozen=True):
    time_unix_s: float
    changes: list[msgspec.Raw]


class _Typed(msgspec.Struct, frozen=True):
    type: str


class Numbered(NamedTuple):
    """A message of either socket: a batch with its number, or the end of a replay with number -1."""

    sequence: int
    payload: bytes


class KvEventError(ValueError):
    """Frames or a batch with an invalid format."""


_KNOWN: Final = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
_encoder = msgspec.msgpack.Encoder()
_batch = msgspec.msgpack.Decoder(ReadBatch)
_raw_batch = msgspec.msgpack.Decoder(_RawBatch)
_typed = msgspec.msgpack.Decoder(_Typed)
_change = msgspec.msgpack.Decoder(Change)


def encode_batch(batch: EventBatch) -> bytes:
    """Encode a batch."""
    return _encoder.encode(batch)


def decode_batch(payload: bytes) -> ReadBatch:
    """Read a batch; raises `KvEventError`."""
    if len(payload) > MAX_BATCH_BYTES:
        raise KvEventError(f"a batch of {len(payload)} bytes is longer than {MAX_BATCH_BYTES}")
    try:
        return _batch.decode(payload)
    except UNREADABLE as error:
        if (batch := _with_unknown_events(payload)) is not None:
            return batch
        raise KvEventError(
            f"not a batch of KV events (SGLang 0.5.21, vLLM 0.32 or newer): {error}"
        ) from error


def _with_unknown_events(payload: bytes) -> ReadBatch | None:
    """Read a batch without its unknown events, which may use other types for known fields."""
    try:
        raw = _raw_batch.decode(payload)
        known = [one for one in raw.changes if _typed.decode(one).type in _KNOWN]
        return ReadBatch(raw.time_unix_s, [_change.decode(one) for one in known])
    except UNREADABLE:
        return None


def encode_sequence(sequence: int) -> bytes:
    """Encode a number as a frame."""
    return sequence.to_bytes(SEQUENCE_BYTES, "big", signed=True)


def live_frames(sequence: int, payload: bytes) -> tuple[bytes, ...]:
    """The frames of a published batch, with an empty topic."""
    return b"", encode_sequence(sequence), payload


def replay_frames(sequence: int, payload: bytes) -> tuple[bytes, ...]:
    """The frames of a replayed batch or of the end; a ROUTER prepends the recipient's name."""
    return b"", b"", encode_sequence(sequence), payload


def replay_question(first: int) -> tuple[bytes, ...]:
    """The frames of a request, from a DEALER, for all batches from number `first` on."""
    return b"", encode_sequence(first)


def read_replay_question(frames: Sequence[bytes]) -> int | None:
    """The first requested number; None if the frames are invalid. Frames come without the sender's name."""
    if len(frames) != 2 or len(frames[1]) != SEQUENCE_BYTES:
        return None
    return int.from_bytes(frames[1], "big")


def read_live(frames: Sequence[bytes]) -> Numbered:
    """Read a published batch; raises `KvEventError`."""
    if len(frames) != 3:
        raise KvEventError(f"a published batch has 3 frames, not {len(frames)}")
    return _numbered(frames[1], frames[2], lowest=0)


def read_replay(frames: Sequence[bytes]) -> Numbered:
    """Read a replayed batch, with or without a topic (SGLang 0.5.21 sends none); raises `KvEventError`."""
    if len(frames) not in (3, 4) or frames[0]:
        raise KvEventError(
            f"a replayed batch has 3 or 4 frames, the first one empty, not {len(frames)}"
        )
    return _numbered(frames[-2], frames[-1], lowest=END_OF_REPLAY)


def _numbered(sequence: bytes, payload: bytes, *, lowest: int) -> Numbered:
    if len(sequence) != SEQUENCE_BYTES:
        raise KvEventError(f"a sequence number has {SEQUENCE_BYTES} bytes, not {len(sequence)}")
    number = int.from_bytes(sequence, "big", signed=True)
    if not lowest <= number <= _MAX_SEQUENCE:
        raise KvEventError(f"{number} is not a sequence number")
    return Numbered(number, payload)
