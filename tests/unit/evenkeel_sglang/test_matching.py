"""A waiting request is matched again when it may have changed, and not otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from evenkeel_sglang.matching import BLOCK_TOKENS, REMATCHED, Matching


@dataclass(eq=False)
class Req:
    rid: str
    origin_input_ids: list[int]
    output_ids: list[int] = field(default_factory=list)
    extra_key: str | None = None
    routing_key: str | None = None
    num_matched_prefix_tokens: int = 0
    sampling_params: Any = None

    def finished(self) -> bool:
        return False


class Cache:
    """Remembers who was matched; finds what it is told it holds."""

    def __init__(self) -> None:
        self.holds = SimpleNamespace(tokens=0)
        self.asked: list[str] = []
        self.matching = Matching(self.match)

    def match(self, request: Any) -> int:
        self.asked.append(request.rid)
        return int(min(self.holds.tokens, len(request.origin_input_ids) - 1))

    def refresh(self) -> list[str]:
        self.asked.clear()
        self.matching.refresh()
        return self.asked


def req(rid: str, *, tokens: int = 64, base: int = 0) -> Req:
    return Req(rid, [base + index for index in range(tokens)])


def fill(cache: Cache, count: int) -> list[Req]:
    """So many strangers that the rotation does not come round at once."""
    strangers = [req(f"s{i}", base=100_000 + 1000 * i) for i in range(count)]
    for stranger in strangers:
        cache.matching.add(stranger)
    return strangers


def test_a_new_request_is_matched() -> None:
    cache = Cache()
    cache.matching.add(req("a"))
    assert cache.refresh() == ["a"]


def test_a_pass_matches_a_bounded_number_again_in_turns() -> None:
    cache = Cache()
    fill(cache, 3 * REMATCHED)
    assert len(cache.refresh()) == 3 * REMATCHED
    rounds = [tuple(cache.refresh()) for _ in range(3)]
    assert [len(part) for part in rounds] == [REMATCHED] * 3
    assert len({rid for part in rounds for rid in part}) == 3 * REMATCHED


def test_requests_that_lack_a_computed_block_are_matched_in_the_next_pass() -> None:
    cache = Cache()
    fill(cache, 2 * REMATCHED)
    maker, follower = req("maker"), req("follower")
    cache.matching.add(maker)
    cache.matching.add(follower)
    cache.refresh()
    cache.matching.begin(maker)
    assert "follower" not in cache.refresh()
    cache.matching.computed(maker, prefilled=True)
    cache.holds.tokens = 63
    assert "follower" in cache.refresh()


def test_a_finished_request_names_the_requests_that_lack_its_output() -> None:
    cache = Cache()
    fill(cache, 2 * REMATCHED)
    parent, child = req("parent", tokens=32), req("child", tokens=96)
    cache.holds.tokens = 32
    cache.matching.add(parent)
    cache.matching.add(child)
    cache.refresh()
    cache.matching.begin(parent)
    parent.output_ids = list(range(32, 64))
    cache.matching.cached(parent)
    assert "child" in cache.refresh()


def test_a_request_waits_only_for_enough_that_it_lacks() -> None:
    cache = Cache()
    maker, follower = req("maker"), req("follower")
    for request in (maker, follower):
        cache.matching.add(request)
    cache.matching.begin(maker)
    assert cache.matching.is_being_computed(follower, 0)
    # With all but one block cached there is less to gain than to lose.
    assert not cache.matching.is_being_computed(follower, 64 - BLOCK_TOKENS)
    cache.matching.end(maker)
    assert not cache.matching.is_being_computed(follower, 0)


def test_namespaces_share_nothing() -> None:
    cache = Cache()
    maker, follower = req("maker"), req("follower")
    follower.extra_key = "adapter"
    for request in (maker, follower):
        cache.matching.add(request)
    cache.matching.begin(maker)
    assert not cache.matching.is_being_computed(follower, 0)


def test_a_request_that_left_is_forgotten() -> None:
    cache = Cache()
    request = req("a")
    cache.matching.add(request)
    cache.refresh()
    cache.matching.discard(request)
    cache.matching.discard(request)
    assert cache.refresh() == []
