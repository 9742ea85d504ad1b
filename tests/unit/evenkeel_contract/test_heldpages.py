"""What published batches add up to, in parts, and what of an answer is refused."""

from __future__ import annotations

import msgspec
import pytest
from evenkeel_contract import heldpages
from evenkeel_contract.heldpages import (
    PART_PAGES,
    HeldPages,
    PagesPart,
    answer,
    decode_part,
    follows,
)
from evenkeel_contract.kvevents import AllBlocksCleared, BlockRemoved, BlockStored
from evenkeel_contract.reports import ReportError


def stored(*hashes: int, medium: str | None = None) -> BlockStored:
    return BlockStored(list(hashes), None, [], 16, None, medium)


def test_batches_add_up_and_the_last_one_is_named() -> None:
    held = HeldPages()
    held.published(1.5, [AllBlocksCleared()])
    held.published(2.5, [stored(5, -3), stored(7, medium="GPU"), stored(8, medium="CPU_PINNED")])
    held.published(3.5, [BlockRemoved([5, 99]), BlockRemoved([7], "CPU_PINNED"), stored(5)])
    assert held.take() == (3, 3.5, 16, [-3, 7, 5])
    held.published(4.5, [AllBlocksCleared(), stored(1)])
    assert held.take() == (4, 4.5, 16, [1])


def test_an_answer_comes_in_parts_that_know_their_place() -> None:
    held = HeldPages()
    count = 2 * PART_PAGES + 3
    held.published(1.0, [stored(*range(-5, count - 5))])
    parts = [decode_part(part) for part in answer(held)]
    assert [(part.part, part.parts, part.sequence) for part in parts] == [
        (0, 3, 1), (1, 3, 1), (2, 3, 1),
    ]  # fmt: skip
    assert [page for part in parts for page in part.hashes] == list(range(-5, count - 5))
    held.published(2.0, [stored(1)])
    later = [decode_part(part) for part in answer(held)]
    assert follows(parts[1], parts[0], 1)
    assert not follows(parts[1], parts[0], 2)
    assert not follows(later[1], parts[0], 1), "of another answer"


def test_an_empty_cache_is_sent_in_one_part() -> None:
    (part,) = map(decode_part, answer(HeldPages()))
    assert (part.sequence, part.parts, list(part.hashes), part.trouble) == (0, 1, [], "")


def test_a_replica_that_cannot_answer_reports_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldPages()
    held.trouble = "another engine"
    (part,) = map(decode_part, answer(held))
    assert part.trouble == "another engine"
    monkeypatch.setattr(heldpages, "MAX_PARTS", 1)
    held.published(1.0, [stored(*range(PART_PAGES + 1))])
    (part,) = map(decode_part, answer(held))
    assert part.trouble == f"it holds more than {PART_PAGES} pages"
    assert not part.pages


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x91" * 5000,
        msgspec.msgpack.encode(["prompts", 1]),
        msgspec.msgpack.encode(PagesPart(2, 0, 0.0, 16, 0, 1)),
        msgspec.msgpack.encode(PagesPart(1, -1, 0.0, 16, 0, 1)),
        msgspec.msgpack.encode(PagesPart(1, 0, 0.0, 16, 0, 1, b"1234567")),
        msgspec.msgpack.encode(PagesPart(1, 0, 0.0, 16, 0, 10_000)),
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(ReportError):
        decode_part(data)


def test_a_page_that_vllm_stored_twice_is_held_until_both_copies_are_removed() -> None:
    held = HeldPages()
    page = 2**64 - 2
    copy = BlockStored([page, 3], None, [], 32, None, "GPU", group_idx=0)
    held.published(1.0, [copy, copy])
    (part,) = map(decode_part, answer(held))
    assert list(part.hashes) == [-2, 3, -2, 3], "a router counts them too"
    held.published(2.0, [BlockRemoved([page], "GPU")])
    assert held.take().hashes == [page, 3, 3]
    held.published(3.0, [BlockRemoved([page, 3], "GPU"), BlockRemoved([3], "GPU")])
    assert held.take().hashes == []
    held.published(4.0, [copy, copy, AllBlocksCleared()])
    assert held.take().hashes == []
