"""Pages, their hashes, and the events that a cache's changes become."""

from __future__ import annotations

import hashlib
from array import array

import msgspec
from evenkeel_contract.kvevents import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from evenkeel_simulator.engine.cache import RadixCache, namespace
from evenkeel_simulator.server.kv_events import KvRecorder
from evenkeel_simulator.server.pages import page_bytes, page_tokens, pages_of

from tests.unit.evenkeel_simulator.engine_support import insert


def hashes_by_the_book(tokens: list[int], page: int) -> list[int]:
    """SGLang's `get_hash_str` and `hash_str_to_int64`, written from their description."""
    prior = ""
    hashes = []
    for start in range(0, len(tokens) // page * page, page):
        digest = hashlib.sha256(bytes.fromhex(prior))
        for token in tokens[start : start + page]:
            digest.update(token.to_bytes(4, "little"))
        prior = digest.hexdigest()
        unsigned = int(prior[:16], 16)
        hashes.append(unsigned - 2**64 if unsigned >= 2**63 else unsigned)
    return hashes


def test_only_whole_pages_are_shared() -> None:
    pages = pages_of(array("I", range(10)), 4)
    assert [page.tokens for page in pages] == [4, 4]
    assert [page_tokens(page_bytes(page)) for page in pages] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_pages_of_an_adapter_have_hashes_of_their_own() -> None:
    recorder = KvRecorder(2)
    cache = RadixCache(recorder)
    pages = pages_of(array("I", [1, 2, 3, 4]), 2)
    adapted = insert(cache, cache.root, (*namespace("x"), *pages))
    insert(cache, adapted, pages_of(array("I", [5, 6]), 2))
    insert(cache, cache.root, pages)
    first, second, plain = recorder.take()
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert isinstance(plain, BlockStored)
    assert (first.parent_block_hash, first.token_ids) == (None, [1, 2, 3, 4])
    assert second.parent_block_hash == first.block_hashes[-1]
    assert not set(first.block_hashes) & set(plain.block_hashes)
    assert plain.block_hashes == hashes_by_the_book([1, 2, 3, 4], 2)
    cache.evict(10)
    removed = [hashed for event in recorder.take() for hashed in event.block_hashes]
    assert sorted(removed) == sorted(first.block_hashes + second.block_hashes + plain.block_hashes)


def test_stored_pages_form_one_event_with_the_parent_before_them() -> None:
    recorder = KvRecorder(2)
    cache = RadixCache(recorder)
    first = insert(cache, cache.root, pages_of(array("I", [1, 2, 3, 4]), 2))
    insert(cache, first, pages_of(array("I", [5, 6]), 2))
    hashes = hashes_by_the_book([1, 2, 3, 4, 5, 6], 2)
    assert recorder.take() == [
        BlockStored(hashes[:2], None, [1, 2, 3, 4], 2, None, "GPU"),
        BlockStored(hashes[2:], hashes[1], [5, 6], 2, None, "GPU"),
    ]
    assert recorder.take() == []


def test_pages_removed_together_share_an_event() -> None:
    recorder = KvRecorder(2)
    cache = RadixCache(recorder)
    insert(cache, cache.root, pages_of(array("I", [1, 2, 3, 4]), 2))
    recorder.take()
    cache.evict(4)
    hashes = hashes_by_the_book([1, 2, 3, 4], 2)
    assert recorder.take() == [BlockRemoved(hashes[::-1], "GPU")]


def test_a_cleared_cache_is_published_and_begins_anew() -> None:
    recorder = KvRecorder(2)
    cache = RadixCache(recorder)
    pages = pages_of(array("I", [1, 2]), 2)
    insert(cache, cache.root, pages)
    recorder.take()
    assert cache.clear()
    assert recorder.take()[-1] == AllBlocksCleared()
    insert(cache, cache.root, pages)
    [stored] = recorder.take()
    assert isinstance(stored, BlockStored) and stored.parent_block_hash is None


def test_a_page_stored_again_has_its_hash_again() -> None:
    recorder = KvRecorder(2)
    cache = RadixCache(recorder)
    pages = pages_of(array("I", [1, 2, 3, 4]), 2)
    insert(cache, cache.root, pages)
    [stored] = recorder.take()
    cache.evict(2)
    recorder.take()
    insert(cache, cache.root, pages)
    [again] = recorder.take()
    assert isinstance(stored, BlockStored) and isinstance(again, BlockStored)
    assert again.block_hashes == stored.block_hashes[1:]
    assert again.parent_block_hash == stored.block_hashes[0]


def test_a_batch_on_the_wire_is_an_array_of_tagged_maps() -> None:
    batch = EventBatch(
        1.5,
        [BlockStored([-7], None, [1, 2], 2, None, "GPU"), BlockRemoved([3]), AllBlocksCleared()],
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch)) == [
        1.5,
        [
            {
                "type": "BlockStored",
                "block_hashes": [-7],
                "parent_block_hash": None,
                "token_ids": [1, 2],
                "block_size": 2,
                "lora_id": None,
                "medium": "GPU",
            },
            {"type": "BlockRemoved", "block_hashes": [3]},
            {"type": "AllBlocksCleared"},
        ],
        0,
    ]
