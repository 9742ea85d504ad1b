"""KV events on the wire: what a replica writes a router reads, whatever else a newer engine may say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evenkeel_contract.kvevents import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Change,
    Event,
    EventBatch,
    KvEventError,
    Numbered,
    decode_batch,
    encode_batch,
    live_frames,
    read_live,
    read_replay,
    read_replay_question,
    replay_frames,
    replay_question,
)
from hypothesis import example, given
from hypothesis import strategies as st

hashes = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5)
media = st.sampled_from([None, "GPU", "CPU_PINNED"])
events = st.one_of(
    st.builds(
        BlockStored,
        block_hashes=hashes,
        parent_block_hash=st.none() | st.integers(-(2**63), 2**63 - 1),
        token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=5),
        block_size=st.integers(1, 64),
        lora_id=st.none() | st.integers(0, 9),
        medium=media,
    ),
    st.builds(BlockRemoved, block_hashes=hashes, medium=media),
    st.builds(AllBlocksCleared),
)
batches = st.builds(
    EventBatch,
    ts=st.floats(0, 2e9),
    events=st.lists(events, max_size=5),
    attn_dp_rank=st.none() | st.integers(0, 3),
)
sequences = st.integers(0, 2**63 - 1)


def read_as(event: Event) -> Change:
    """What a reader is to make of an event."""
    if isinstance(event, BlockStored):
        return Change("BlockStored", event.block_hashes, event.block_size, event.medium)
    if isinstance(event, BlockRemoved):
        return Change("BlockRemoved", event.block_hashes, 0, event.medium)
    return Change("AllBlocksCleared")


@given(batches)
def test_what_is_written_is_read(batch: EventBatch) -> None:
    read = decode_batch(encode_batch(batch))
    assert read.time_unix_s == batch.ts
    assert read.changes == [read_as(event) for event in batch.events]


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(batches, st.dictionaries(st.text(max_size=9), plain), st.lists(plain, max_size=2))
@example(EventBatch(0.0, []), {"shape": [b"a"], "type": "x"}, [])
@example(EventBatch(0.0, [BlockRemoved([])]), {"group_idx": []}, [])
def test_what_a_newer_engine_adds_is_passed_over(
    batch: EventBatch, more: dict[str, Any], at_the_end: list[Any]
) -> None:
    new = {key: more[key] for key in more.keys() - set(Change.__struct_fields__)}
    ts, sent, rank = msgspec.msgpack.decode(encode_batch(batch))
    grown = [new | event for event in sent]
    unknown = {**new, "block_hashes": [b"a"], "type": "BlockMoved"}
    newer = msgspec.msgpack.encode([ts, [unknown, *grown], rank, *at_the_end])
    kept = [change for change in decode_batch(newer).changes if change.type != "BlockMoved"]
    assert kept == [read_as(event) for event in batch.events]


@given(st.binary(max_size=60) | plain.map(msgspec.msgpack.encode))
@example(msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [1], 1, None]], 0]))
@example(msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": [b"x"]}], 0]))
@example(msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": [2**63]}], 0]))
def test_anything_else_is_the_named_error_and_nothing_worse(payload: bytes) -> None:
    try:
        batch = decode_batch(payload)
    except KvEventError:
        return
    assert isinstance(batch.changes, list)


def test_events_as_arrays_are_reported_as_too_old() -> None:
    old = msgspec.msgpack.encode([1.0, [["BlockRemoved", [1]]], 0])
    with pytest.raises(KvEventError, match=r"SGLang 0\.5\.21, vLLM 0\.32 or newer"):
        decode_batch(old)


def test_only_device_memory_is_followed() -> None:
    def change(event: Event) -> Change:
        (read,) = decode_batch(encode_batch(EventBatch(0.0, [event]))).changes
        return read

    assert change(BlockStored([1], None, [1], 1, None)).stores
    assert change(BlockStored([1], None, [1], 1, None, "GPU")).stores
    assert not change(BlockStored([1], None, [1], 1, None, "CPU_PINNED")).stores
    assert change(BlockRemoved([1], "GPU")).removes
    assert not change(BlockRemoved([1], "CPU_PINNED")).removes
    assert change(AllBlocksCleared()).clears


@given(sequences, st.binary(max_size=9))
def test_frames_carry_number_and_batch(sequence: int, payload: bytes) -> None:
    assert read_live(live_frames(sequence, payload)) == Numbered(sequence, payload)
    assert read_replay(replay_frames(sequence, payload)) == Numbered(sequence, payload)
    without_topic = (b"", *live_frames(sequence, payload)[1:])  # as SGLang 0.5.21 replays
    assert read_replay(without_topic) == Numbered(sequence, payload)
    assert read_replay_question(replay_question(sequence)) == sequence


def test_a_replay_ends_with_a_number_that_no_batch_has() -> None:
    end = replay_frames(END_OF_REPLAY, b"")
    assert end == (b"", b"", b"\xff" * 8, b"")
    assert read_replay(end).sequence == END_OF_REPLAY
    with pytest.raises(KvEventError, match="not a sequence number"):
        read_live(end[1:])


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_other_frames_are_the_named_error_or_no_question(frames: list[bytes]) -> None:
    for read, counts in ((read_live, [3]), (read_replay, [3, 4])):
        try:
            read(frames)
        except KvEventError:
            continue
        assert len(frames) in counts
    if read_replay_question(frames) is not None:
        assert len(frames) == 2 and len(frames[1]) == 8
