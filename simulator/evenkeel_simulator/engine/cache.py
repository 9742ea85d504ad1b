"""The radix cache of one replica: a tree of segments with LRU eviction, as SGLang's tree of tokens.

A segment is an indivisible piece of a prompt: a system prompt of 600 tokens or a page of 16. A prefix is
cached in whole segments, and a segment on several paths below one parent is stored once.

Waiting prompts *follow* the tree. Each is kept at the deepest node that it matches, under the segment that it lacks. So
an inserted or evicted node moves exactly the prompts concerned, and waiting requests are never matched again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol


class Segment(NamedTuple):
    """An indivisible piece of a prompt. Equal segments below the same prefix are the same tokens."""

    key: Hashable
    tokens: int


def namespace(adapter: str | None, cache_salt: str = "") -> tuple[Segment, ...]:
    """What goes before a prompt: a segment without tokens. So no prefix is shared across adapters and salts."""
    if cache_salt:
        return (Segment((adapter, cache_salt), 0),)
    return () if adapter is None else (Segment(adapter, 0),)


def chain(block: int, segment: Segment) -> int:
    """Hash of the path of `block` (0 at the root) extended by `segment`; 64 bits, not negative."""
    return hash((block, segment)) & 0xFFFF_FFFF_FFFF_FFFF


class Node:
    """One cached segment. Read-only outside this module."""

    __slots__ = ("access", "alive", "block", "children", "locks", "parent", "parked", "segment")

    def __init__(self, segment: Segment, parent: Node | None, access: int) -> None:
        self.segment = segment
        self.parent = parent
        self.children: dict[Segment, Node] = {}
        self.access = access
        """Tick of the last use; the exact value is the maximum over the subtree (see `RadixCache._remove`)."""
        self.locks = 0
        """Running requests that end here, plus children that are locked."""
        self.alive = True
        self.parked: dict[Segment | None, dict[Seeker, None]] | None = None
        """Waiting prompts whose deepest match is here, by the segment they lack (None: they lack none)."""
        self.block: int = chain(parent.block, segment) if parent is not None else 0
        """Chained hash of the path, as a router's index would key it."""


class Seeker(Protocol):
    """A waiting prompt that follows the cache; the cache keeps its last four attributes current."""

    @property
    def prompt(self) -> Sequence[Segment]: ...
    @property
    def most_matched_tokens(self) -> int:
        """Most tokens that may match: at least one token is always computed."""

    node: Node | None
    """The deepest match; None while the prompt does not follow the cache."""
    depth: int
    """Number of matched segments."""
    path_tokens: int
    """Tokens of the matched segments."""
    matched_tokens: int
    """Tokens of the match, at most `most_matched_tokens`."""


class CacheObserver(Protocol):
    """Gets notice of what the cache stores and drops, for KV events and for a router's index."""

    def stored(self, nodes: Sequence[Node]) -> None:
        """Stored a chain, top down; the parent of the first node already existed."""

    def removed(self, node: Node) -> None: ...

    def cleared(self) -> None: ...


class Match(NamedTuple):
    """The longest cached prefix of a prompt."""

    node: Node
    depth: int
    tokens: int


class RadixCache:
    """The tree and its sizes, in tokens: `tokens` in all, of which `evictable` belong to no running request."""

    def __init__(self, observer: CacheObserver | None = None) -> None:
        self.tokens = 0
        self.evictable = 0
        self.nodes = 0
        self.root = Node(Segment(None, 0), None, 0)
        self.root.locks = 1  # never evicted, and the end of every walk upwards
        self.observer = observer
        self._rematched: dict[Seeker, None] = {}
        self._tick = 0
        # Candidates for eviction by (access, serial), some of them stale; see `_victim`.
        self._idle: list[tuple[int, int, Node]] = []
        self._wanted: list[tuple[int, int, Node]] = []
        self._serial = 0

    # Matching

    def match(self, prompt: Sequence[Segment]) -> Match:
        """The longest cached prefix. Does not count as a use."""
        return self._walk(prompt, self.root, 0, 0)

    @staticmethod
    def _walk(prompt: Sequence[Segment], node: Node, depth: int, tokens: int) -> Match:
        for index in range(depth, len(prompt)):
            child = node.children.get(prompt[index])
            if child is None:
                return Match(node, index, tokens)
            node = child
            tokens += child.segment.tokens
        return Match(node, len(prompt), tokens)

    def follow(self, seeker: Seeker, match: Match | None = None) -> None:
        """Match a waiting prompt and keep its match current until `unfollow`. `match`: its match, if known."""
        self._park(seeker, match or self.match(seeker.prompt))

    def take_rematched(self) -> Iterable[Seeker]:
        """Prompts whose match may have changed since the last call."""
        rematched, self._rematched = self._rematched, {}
        return rematched

    def unfollow(self, seeker: Seeker) -> None:
        """Stop keeping the match current, if it was."""
        node = seeker.node
        if node is None:
            return
        seeker.node = None
        assert node.parked is not None
        lacking = _lacking(seeker)
        group = node.parked[lacking]
        del group[seeker]
        if not group:
            del node.parked[lacking]
            if not node.parked:
                node.parked = None
                self._offer(node)

    def _park(self, seeker: Seeker, match: Match) -> None:
        node = match.node
        seeker.node, seeker.depth, seeker.path_tokens = match
        seeker.matched_tokens = min(match.tokens, seeker.most_matched_tokens)
        self._rematched[seeker] = None
        if node.parked is None:
            node.parked = {}
            self._offer(node)
        node.parked.setdefault(_lacking(seeker), {})[seeker] = None

    # Storing

    def extend(self, node: Node, segments: Sequence[Segment]) -> Node:
        """Store `segments` below a locked node, as far as they are not there, and lock the last one's node instead; returns it."""
        end = parent = node
        created: list[Node] = []
        self._tick += 1
        for segment in segments:
            child = end.children.get(segment)
            if child is None:
                child = Node(segment, end, self._tick)
                end.children[segment] = child
                self.tokens += segment.tokens
                self.evictable += segment.tokens
                created.append(child)
                if len(created) == 1:
                    parent = end
            end = child
        if created:
            self.nodes += len(created)
            self._advance_parked(parent, created[0])
            if self.observer is not None:
                self.observer.stored(created)
        self.lock(end)
        self.unlock(node)
        return end

    def _advance_parked(self, parent: Node, child: Node) -> None:
        """Prompts that waited for `child` below `parent` now match further."""
        if parent.parked is None:
            return
        group = parent.parked.pop(child.segment, None)
        if group is None:
            return
        if not parent.parked:
            parent.parked = None
        for seeker in group:
            tokens = seeker.path_tokens + child.segment.tokens
            self._park(seeker, self._walk(seeker.prompt, child, seeker.depth + 1, tokens))

    def lock(self, node: Node) -> None:
        """Protect the path down to `node` for a running request. Counts as a use."""
        self._tick += 1
        node.access = self._tick
        while True:
            node.locks += 1
            # Its ancestors are locked already, by the earlier lock.
            if node.locks > 1:
                return
            self.evictable -= node.segment.tokens
            node = _parent(node)

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        while True:
            node.locks -= 1
            if node.locks:
                return
            self.evictable += node.segment.tokens
            self._offer(node)
            node = _parent(node)

    # Eviction

    def evict(self, tokens: int) -> int:
        """Drop least recently used leaves until `tokens` are free or nothing is left to drop; tokens freed.

        Leaves that a waiting prompt matches go last: SGLang matches every waiting request before each pass,
        which makes their prefixes the most recently used.
        """
        freed = 0
        while freed < tokens:
            node = self._victim(self._idle, wanted=False) or self._victim(self._wanted, wanted=True)
            if node is None:
                break
            freed += node.segment.tokens
            self._remove(node)
        return freed

    def clear(self) -> bool:
        """Drop everything if nothing is locked. Returns whether it did."""
        if self.evictable != self.tokens:
            return False
        observer, self.observer = self.observer, None  # one event for all, as SGLang's
        # + 1: nodes without tokens, those of namespaces, go too.
        self.evict(self.tokens + 1)
        self.observer = observer
        if observer is not None:
            observer.cleared()
        return True

    def _remove(self, node: Node) -> None:
        parent = _parent(node)
        del parent.children[node.segment]
        node.alive = False
        self.nodes -= 1
        self.tokens -= node.segment.tokens
        self.evictable -= node.segment.tokens
        # Using a node uses its ancestors. The parent is updated only when it may become a leaf. The order is the same
        # as with an update of the whole path at each use.
        parent.access = max(parent.access, node.access)
        if node.parked is not None:
            self._retreat_parked(node, parent)
        self._offer(parent)
        if self.observer is not None:
            self.observer.removed(node)

    def _retreat_parked(self, node: Node, parent: Node) -> None:
        assert node.parked is not None
        parked, node.parked = node.parked, None
        if parent.parked is None:
            parent.parked = {}
        group = parent.parked.setdefault(node.segment, {})
        for seekers in parked.values():
            for seeker in seekers:
                seeker.node = parent
                seeker.depth -= 1
                seeker.path_tokens -= node.segment.tokens
                seeker.matched_tokens = min(seeker.path_tokens, seeker.most_matched_tokens)
            self._rematched.update(seekers)
            group.update(seekers)

    def _offer(self, node: Node) -> None:
        """Make a node a candidate for eviction if it is an unused leaf."""
        if node.locks or node.children:
            return
        heap = self._idle if node.parked is None else self._wanted
        self._serial += 1
        heappush(heap, (node.access, self._serial, node))
        if len(heap) > 64 + 4 * self.nodes:  # mostly stale entries: keep the live ones
            wanted = heap is self._wanted
            live = {entry[2]: entry for entry in heap if _is_candidate(entry, wanted=wanted)}
            heap[:] = live.values()
            heapify(heap)

    @staticmethod
    def _victim(heap: list[tuple[int, int, Node]], *, wanted: bool) -> Node | None:
        while heap:
            entry = heappop(heap)
            if _is_candidate(entry, wanted=wanted):
                return entry[2]
        return None


def _is_candidate(entry: tuple[int, int, Node], *, wanted: bool) -> bool:
    """Whether a heap entry is current: an unlocked leaf with the same last use and the same waiting prompts."""
    access, _, node = entry
    return (
        node.alive
        and node.access == access
        and not node.locks
        and not node.children
        and (node.parked is not None) == wanted
    )


def _lacking(seeker: Seeker) -> Segment | None:
    return seeker.prompt[seeker.depth] if seeker.depth < len(seeker.prompt) else None


def _parent(node: Node) -> Node:
    assert node.parent is not None  # the root is locked and never removed
    return node.parent
