"""KV events: what a replica's cache stored and dropped, as SGLang 0.5.21 and newer say it. Bytes are MessagePack.

Place in the flow: replica's cache → batches, **here** → a router's exact view of it. Live batches come over PUB
and SUB as frames `[topic, sequence (8 bytes, big endian), batch]`; a batch is `[timestamp, events, rank]`, each event a
map whose `type` names it. A ROUTER replays what is still kept: asked with `[empty, first sequence]` it answers
`[empty, topic, sequence, batch]` for each and then, with the sequence -1, that this was all.

The surprising thing: a reader takes less than a writer gives. Token ids are passed over, since hashes say all that a router
needs, and events, fields and ranks that nobody knows yet are no fault: engines are upgraded before routers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

GPU: Final = "GPU"
"""The medium that a router follows: what the engine's device memory holds. SGLang also says `CPU_PINNED` and others."""
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Of one batch. SGLang's largest are those of a full prefill: 64k tokens are less than half a megabyte."""
KEPT_BATCHES: Final = 10_000
"""How many a replica keeps for replay, unless told otherwise: SGLang's `buffer_steps`."""
SEQUENCE_BYTES: Final = 8
END_OF_REPLAY: Final = -1
_MAX_SEQUENCE: Final = 2**63 - 1

Hash = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""The first 8 bytes of a block's chained SHA-256, as a signed number."""
Blocks = Annotated[list[Hash], msgspec.Meta(max_length=4 * 1024 * 1024)]


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks were stored, each the child of the one before."""

    block_hashes: list[int]
    parent_block_hash: int | None
    """Of the block before the first one; None at the root."""
    token_ids: list[int]
    block_size: int
    """Tokens of one block: the engine's page size."""
    lora_id: int | None
    medium: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks were dropped."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True):
    """What changed since the last batch, as a replica sends it."""

    ts: float
    """Unix time, seconds, by the replica's clock."""
    events: list[Event]
    attn_dp_rank: int | None = 0


class Change(msgspec.Struct, frozen=True):
    """One event as it is read: every field that any known event has."""

    type: str = ""
    block_hashes: Blocks = []
    block_size: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    medium: str | None = None

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
        """All blocks did."""
        return self.type == "AllBlocksCleared"


class ReadBatch(msgspec.Struct, array_like=True, frozen=True):
    """A batch as it is read."""

    time_unix_s: float
    changes: list[Change]


class _RawBatch(msgspec.Struct, array_like=True, frozen=True):
    time_unix_s: float
    changes: list[msgspec.Raw]


class _Typed(msgspec.Struct, frozen=True):
    type: str


class Numbered(NamedTuple):
    """A message of either socket: a batch with its number, or the end of a replay, whose number is -1."""

    sequence: int
    payload: bytes


class KvEventError(ValueError):
    """Frames or a batch that are not what this module describes."""


_KNOWN: Final = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.msgpack.Encoder()
_batch = msgspec.msgpack.Decoder(ReadBatch)
_raw_batch = msgspec.msgpack.Decoder(_RawBatch)
_typed = msgspec.msgpack.Decoder(_Typed)
_change = msgspec.msgpack.Decoder(Change)


def encode_batch(batch: EventBatch) -> bytes:
    """What a replica sends."""
    return _encoder.encode(batch)


def decode_batch(payload: bytes) -> ReadBatch:
    """Read a batch; raises `KvEventError`."""
    if len(payload) > MAX_BATCH_BYTES:
        raise KvEventError(f"a batch of {len(payload)} bytes is longer than {MAX_BATCH_BYTES}")
    try:
        return _batch.decode(payload)
    except _UNREADABLE as error:
        if (batch := _with_unknown_events(payload)) is not None:
            return batch
        raise KvEventError(f"not a batch of KV events (SGLang 0.5.21 or newer): {error}") from error


def _with_unknown_events(payload: bytes) -> ReadBatch | None:
    """An event that nobody knows may give a known field another type; such events are passed over."""
    try:
        raw = _raw_batch.decode(payload)
        known = [one for one in raw.changes if _typed.decode(one).type in _KNOWN]
        return ReadBatch(raw.time_unix_s, [_change.decode(one) for one in known])
    except _UNREADABLE:
        return None


def encode_sequence(sequence: int) -> bytes:
    """A number as a frame."""
    return sequence.to_bytes(SEQUENCE_BYTES, "big", signed=True)


def live_frames(sequence: int, payload: bytes) -> tuple[bytes, ...]:
    """A batch as it is published, without a topic."""
    return b"", encode_sequence(sequence), payload


def replay_frames(sequence: int, payload: bytes) -> tuple[bytes, ...]:
    """A batch, or the end, as it is replayed; a ROUTER puts the asker's name in front."""
    return b"", b"", encode_sequence(sequence), payload


def replay_question(first: int) -> tuple[bytes, ...]:
    """Ask, from a DEALER, for all batches from number `first` on."""
    return b"", encode_sequence(first)


def read_replay_question(frames: Sequence[bytes]) -> int | None:
    """The first number asked for; None where it is no such question. Frames without the asker's name."""
    if len(frames) != 2 or len(frames[1]) != SEQUENCE_BYTES:
        return None
    return int.from_bytes(frames[1], "big")


def read_live(frames: Sequence[bytes]) -> Numbered:
    """A published batch; raises `KvEventError`."""
    if len(frames) != 3:
        raise KvEventError(f"a published batch has 3 frames, not {len(frames)}")
    return _numbered(frames[1], frames[2], lowest=0)


def read_replay(frames: Sequence[bytes]) -> Numbered:
    """An answer of a replay, with its topic or, as from SGLang 0.5.21, without; raises `KvEventError`."""
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
        raise KvEventError(f"{number} is no sequence number")
    return Numbered(number, payload)
