from evenkeel_simulator.engine.cache import Node, RadixCache, Segment

from tests.unit.evenkeel_simulator.engine_support import insert, make_request


def path(*pieces: tuple[str, int]) -> list[Segment]:
    return [Segment(*piece) for piece in pieces]


class Log:
    def __init__(self) -> None:
        self.events: list[object] = []

    def stored(self, nodes: list[Node]) -> None:
        assert nodes[0].parent is not None
        above = nodes[0].parent.segment.key
        self.events.append(("stored", above, [n.segment.key for n in nodes]))

    def removed(self, node: Node) -> None:
        self.events.append(("removed", node.segment.key))

    def cleared(self) -> None:
        self.events.append("cleared")


def test_a_prefix_matches_in_whole_segments() -> None:
    cache = RadixCache()
    insert(cache, cache.root, path(("a", 10), ("b", 20)))
    match = cache.match(path(("a", 10), ("c", 5)))
    assert (match.depth, match.tokens) == (1, 10)


def test_equal_keys_of_different_length_are_different_segments() -> None:
    cache = RadixCache()
    insert(cache, cache.root, path(("a", 10)))
    assert cache.match(path(("a", 11))).tokens == 0


def test_a_shared_segment_is_counted_once() -> None:
    cache = RadixCache()
    insert(cache, cache.root, path(("a", 10), ("b", 20)))
    insert(cache, cache.root, path(("a", 10), ("c", 30)))
    assert cache.tokens == 60
    assert cache.evictable == 60


def test_a_locked_path_is_not_evicted_until_the_last_lock_is_released() -> None:
    cache = RadixCache()
    insert(cache, cache.root, path(("a", 10), ("b", 20)))
    leaf = insert(cache, cache.root, path(("a", 10), ("c", 30)))
    cache.lock(leaf)
    cache.lock(leaf)
    assert cache.evictable == 20
    cache.unlock(leaf)
    assert cache.evictable == 20
    assert cache.evict(1000) == 20
    cache.unlock(leaf)
    assert cache.evictable == 40
    assert cache.evict(1000) == 40
    assert cache.tokens == cache.nodes == 0


def test_the_least_recently_used_leaf_goes_first_and_children_use_parents() -> None:
    log = Log()
    cache = RadixCache(log)
    insert(cache, cache.root, path(("old", 1)))
    child = insert(cache, cache.root, path(("parent", 1), ("child", 1)))
    insert(cache, cache.root, path(("young", 1)))
    cache.lock(child)
    cache.unlock(child)
    log.events.clear()
    assert cache.evict(2) == 2
    assert log.events == [("removed", "old"), ("removed", "young")]
    assert cache.evict(2) == 2
    assert log.events[2:] == [("removed", "child"), ("removed", "parent")]


def test_a_leaf_that_a_waiting_prompt_matches_goes_last() -> None:
    log = Log()
    cache = RadixCache(log)
    insert(cache, cache.root, path(("wanted", 1)))
    insert(cache, cache.root, path(("young", 1)))
    seeker = make_request("r", prompt=(("wanted", 1), ("new", 1)))
    cache.follow(seeker)
    log.events.clear()
    cache.evict(1)
    assert log.events == [("removed", "young")]
    insert(cache, cache.root, path(("younger", 1)))
    cache.unfollow(seeker)
    cache.evict(1)
    assert log.events[-1] == ("removed", "wanted")


def test_a_waiting_prompt_follows_what_is_stored_and_dropped() -> None:
    cache = RadixCache()
    seeker = make_request("r", prompt=(("a", 10), ("b", 20), ("c", 30)), tail=5)
    cache.follow(seeker)
    assert seeker.matched_tokens == 0
    insert(cache, cache.root, path(("a", 10), ("b", 20), ("x", 1)))
    assert (seeker.depth, seeker.matched_tokens) == (2, 30)
    insert(cache, cache.root, path(("a", 10), ("b", 20), ("c", 30)))
    assert (seeker.depth, seeker.matched_tokens) == (3, 60)
    cache.evict(1000)
    assert (seeker.depth, seeker.matched_tokens) == (0, 0)
    insert(cache, cache.root, path(("a", 10)))
    assert seeker.matched_tokens == 10


def test_a_full_match_leaves_one_token_to_compute() -> None:
    cache = RadixCache()
    insert(cache, cache.root, path(("a", 10)))
    seeker = make_request("r", prompt=(("a", 10),))
    cache.follow(seeker)
    assert seeker.matched_tokens == 9


def test_the_observer_hears_of_chains_below_their_parent_and_of_one_clearing() -> None:
    log = Log()
    cache = RadixCache(log)
    insert(cache, cache.root, path(("a", 1), ("b", 1)))
    insert(cache, cache.root, path(("a", 1), ("b", 1), ("c", 1), ("d", 1)))
    insert(cache, cache.root, path(("of an adapter", 0)))
    log.events.pop()
    assert cache.clear()
    assert log.events == [
        ("stored", None, ["a", "b"]),
        ("stored", "b", ["c", "d"]),
        "cleared",
    ]
    assert cache.tokens == cache.evictable == cache.nodes == 0


def test_clearing_is_refused_while_a_path_is_locked() -> None:
    cache = RadixCache()
    cache.lock(insert(cache, cache.root, path(("a", 1))))
    assert not cache.clear()
    assert cache.tokens == 1


def test_entries_of_many_uses_do_not_pile_up() -> None:
    cache = RadixCache()
    leaf = insert(cache, cache.root, path(("a", 1)))
    for _ in range(10_000):
        cache.lock(leaf)
        cache.unlock(leaf)
    assert len(cache._idle) < 100
    assert cache.evict(1) == 1
