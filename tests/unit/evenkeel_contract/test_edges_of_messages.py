"""Messages between processes, at the edge of what is read."""

from __future__ import annotations

import msgspec
import pytest
from evenkeel_contract import kvevents
from evenkeel_contract.kvevents import (
    KvEventError,
    decode_batch,
    encode_sequence,
    live_frames,
    read_live,
    read_replay,
    read_replay_question,
    replay_frames,
    replay_question,
)

from tests.support.crd_documents import SERVICE, changed, faults_of

REMOVED = {"type": "BlockRemoved", "block_hashes": [1, 2]}
STRANGE = {"type": "BlockMoved", "block_hashes": "of another type"}


def test_a_batch_is_read_without_events_that_are_unknown() -> None:
    payload = msgspec.msgpack.encode([1.5, [REMOVED, STRANGE, {"type": "AllBlocksCleared"}]])
    batch = decode_batch(payload)
    assert batch.time_unix_s == 1.5
    assert [one.type for one in batch.changes] == ["BlockRemoved", "AllBlocksCleared"]
    assert [one.removes for one in batch.changes] == [True, False]
    assert [one.clears for one in batch.changes] == [False, True]


@pytest.mark.parametrize(
    "plain",
    [[1.5, [REMOVED | {"block_hashes": "x"}]], [1.5, [3]], ["x", []], [1.5], "text"],
)
def test_a_batch_with_a_known_event_that_is_odd_is_an_error(plain: object) -> None:
    with pytest.raises(KvEventError):
        decode_batch(msgspec.msgpack.encode(plain))


def test_a_batch_of_the_longest_size_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = msgspec.msgpack.encode([1.5, [REMOVED]])
    monkeypatch.setattr(kvevents, "MAX_BATCH_BYTES", len(payload))
    assert len(decode_batch(payload).changes) == 1
    monkeypatch.setattr(kvevents, "MAX_BATCH_BYTES", len(payload) - 1)
    with pytest.raises(KvEventError, match="is longer than"):
        decode_batch(payload)


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1])
def test_frames_are_read_as_they_were_written(number: int) -> None:
    assert read_live(live_frames(number, b"x")) == (number, b"x")
    assert read_replay(replay_frames(number, b"x")) == (number, b"x")
    assert read_replay(replay_frames(number, b"x")[1:]) == (number, b"x")
    assert read_replay_question(replay_question(number)) == number


def test_frames_that_are_odd_are_errors() -> None:
    assert read_replay((b"", encode_sequence(-1), b"")) == (-1, b"")
    for frames in ((), (b"", b"x"), (b"", b"x" * 8), (b"",) * 4, (b"", encode_sequence(-1), b"")):
        with pytest.raises(KvEventError):
            read_live(frames)
    for frames in (
        (b"", b"x" * 8),
        (b"t", encode_sequence(1), b""),
        (b"", encode_sequence(-2), b""),
    ):
        with pytest.raises(KvEventError):
            read_replay(frames)
    for question in ((), (b"",), (b"", b"1234567"), (b"", b"12345678", b"")):
        assert read_replay_question(question) is None


def test_an_annotation_of_ours_is_a_fault_on_each_way_in() -> None:
    """The first way in is not set: the next one is still looked at."""
    route = {"parentRefs": [{"name": "gateway"}], "annotations": {"evenkeel.dev/digest": "x"}}
    document = changed(SERVICE, {"spec.exposure": {"httpRoute": route}})
    assert [one.path for one in faults_of(document)] == [
        "spec.exposure.httpRoute.annotations['evenkeel.dev/digest']"
    ]
