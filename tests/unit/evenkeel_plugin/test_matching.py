"""A waiting request is matched again when it may have changed, and not otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from evenkeel_plugin.matching import (
    BLOCK_TOKENS,
    GROUPS,
    MATCHES,
    MATCHES_SAVED,
    TOKENS_OF_A_GROUP,
    Matching,
)


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
    """Remembers which requests were matched; holds these prefixes."""

    def __init__(self) -> None:
        self.holds: list[list[int]] = []
        self.asked: list[str] = []
        self.matching = Matching(self.match)

    def match(self, request: Any) -> int:
        self.asked.append(request.rid)
        context = [*request.origin_input_ids, *request.output_ids]
        return max((common(context[:-1], held) for held in self.holds), default=0)

    def refresh(self, computed: int = GROUPS * TOKENS_OF_A_GROUP) -> list[str]:
        """`computed`: tokens since the last pass."""
        self.asked.clear()
        self.matching.refresh(decoded=computed)
        return self.asked


def common(one: list[int], other: list[int]) -> int:
    """The length of the longest common prefix."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def req(rid: str, *, tokens: int = 64, base: int = 0) -> Req:
    return Req(rid, [base + index for index in range(tokens)])


def fill(cache: Cache, groups: int, *, each: int = 1, held: int = 32) -> list[Req]:
    """Requests of clients with a cached prefix each."""
    requests = []
    for group in range(groups):
        prefix = [100_000 + 1000 * group + index for index in range(held)]
        cache.holds.append(prefix)
        for member in range(each):
            own = [900_000 + 1000 * (group * each + member) + index for index in range(32)]
            requests.append(Req(f"g{group}-{member}", prefix + own))
            cache.matching.add(requests[-1])
    return requests


def test_a_new_request_is_matched() -> None:
    cache = Cache()
    cache.matching.add(req("a"))
    assert cache.refresh() == ["a"]


def test_a_pass_matches_one_request_of_each_of_a_few_groups_again_in_turns() -> None:
    cache = Cache()
    fill(cache, 2 * GROUPS, each=3)
    assert len(cache.refresh()) == 2 * GROUPS * 3
    passes = [tuple(cache.refresh()) for _ in range(6)]
    assert [len(part) for part in passes] == [GROUPS] * 6
    assert len({rid for part in passes for rid in part}) == 2 * GROUPS * 3


def test_a_pass_matches_fewer_groups_where_little_was_computed() -> None:
    cache = Cache()
    fill(cache, 2 * GROUPS)
    cache.refresh()
    computed = (0, TOKENS_OF_A_GROUP - 1, 0, 3 * TOKENS_OF_A_GROUP, 0, 11 * TOKENS_OF_A_GROUP, 0)
    passes = [tuple(cache.refresh(tokens)) for tokens in computed]
    assert [len(part) for part in passes] == [1, 1, 1, 4, 1, GROUPS, 4]


def test_requests_without_a_match_are_one_group() -> None:
    cache = Cache()
    fill(cache, MATCHES, held=0)
    cache.refresh()
    assert len(cache.refresh()) == 1


def test_prefixes_that_differ_after_their_whole_blocks_are_different_groups() -> None:
    cache = Cache()
    one, other = (list(range(BLOCK_TOKENS)) + [tail, tail] for tail in (501, 502))
    cache.holds = [one, other]
    for rid, held in (("one", one), ("other", other)):
        cache.matching.add(Req(rid, held + list(range(700, 740))))
    cache.refresh()
    assert sorted(cache.refresh()) == ["one", "other"]


def test_all_requests_of_an_evicted_prefix_are_matched_again() -> None:
    cache = Cache()
    requests = fill(cache, 2, each=40)
    cache.refresh()
    cache.holds.pop(0)
    changed = cache.matching.refresh(decoded=0)
    assert changed == {request: 0 for request in requests[:40]}
    assert cache.matching.refresh(decoded=0) == {}


def test_a_burst_is_matched_in_several_passes() -> None:
    cache = Cache()
    fill(cache, MATCHES + 10, held=0)
    assert len(cache.refresh()) == MATCHES
    assert len(cache.refresh()) == 1 + 10
    assert len(cache.refresh()) == 1


def test_a_long_queue_that_came_at_once_is_matched_little_by_little() -> None:
    cache = Cache()
    waiting = fill(cache, MATCHES + 4 * MATCHES_SAVED, held=0)
    assert len(cache.refresh()) == MATCHES
    assert len(cache.refresh()) == 1 + MATCHES_SAVED
    for request in waiting[:3]:
        cache.matching.begin(request, 0)
    assert len(cache.refresh()) == 1 + MATCHES_SAVED + 3


def test_a_refresh_returns_only_changed_matches() -> None:
    cache = Cache()
    request = req("a")
    cache.holds = [request.origin_input_ids[:40]]
    cache.matching.add(request)
    assert cache.matching.refresh(decoded=0) == {request: 40}
    assert cache.matching.refresh(decoded=0) == {}
    cache.holds = [request.origin_input_ids]
    assert cache.matching.refresh(decoded=0) == {request: 63}


def test_requests_that_lack_a_computed_block_are_matched_in_the_next_pass() -> None:
    cache = Cache()
    maker, follower = req("maker"), req("follower")
    cache.matching.add(maker)
    fill(cache, 5 * GROUPS, held=0)
    cache.matching.add(follower)
    cache.refresh()
    cache.matching.begin(maker, 0)
    assert "follower" not in cache.refresh()
    cache.matching.computed(maker, prefilled=True)
    cache.holds.append(maker.origin_input_ids)
    assert "follower" in cache.refresh()


def test_a_finished_request_names_the_requests_that_lack_its_output() -> None:
    cache = Cache()
    fill(cache, 2 * GROUPS)
    parent, child = req("parent", tokens=32), req("child", tokens=96)
    cache.holds.append(parent.origin_input_ids)
    cache.matching.add(parent)
    cache.matching.add(child)
    cache.refresh()
    cache.matching.begin(parent, 0)
    parent.output_ids = list(range(32, 64))
    cache.matching.cached(parent)
    assert "child" in cache.refresh()


def test_a_request_waits_only_for_enough_that_it_lacks() -> None:
    cache = Cache()
    maker, follower = req("maker"), req("follower")
    for request in (maker, follower):
        cache.matching.add(request)
    cache.matching.begin(maker, 0)
    assert cache.matching.is_being_computed(follower, 0)
    # With all but one block cached there is less to gain than to lose.
    assert not cache.matching.is_being_computed(follower, 64 - BLOCK_TOKENS)
    cache.matching.end(maker)
    assert not cache.matching.is_being_computed(follower, 0)


def test_what_two_requests_compute_is_being_computed_until_both_have_ended() -> None:
    cache = Cache()
    makers, follower = [req("one"), req("other")], req("follower")
    for maker in makers:
        cache.matching.begin(maker, 0)
    cache.matching.end(makers[0])
    assert cache.matching.is_being_computed(follower, 0)
    cache.matching.end(makers[1])
    assert not cache.matching.is_being_computed(follower, 0)


def test_namespaces_share_nothing() -> None:
    cache = Cache()
    maker, follower = req("maker"), req("follower")
    follower.extra_key = "adapter"
    for request in (maker, follower):
        cache.matching.add(request)
    cache.matching.begin(maker, 0)
    assert not cache.matching.is_being_computed(follower, 0)


def test_a_request_that_left_is_forgotten() -> None:
    cache = Cache()
    request = req("a")
    cache.matching.add(request)
    cache.refresh()
    cache.matching.discard(request)
    cache.matching.discard(request)
    assert cache.refresh() == []
