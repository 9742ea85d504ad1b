"""The KV pool: tokens in the cache, private tokens of requests, and free tokens.

Invariant, after every call: cache.tokens + private = capacity - free, and available >= 0. A request in the batch
locks the path of its cached prefix and holds the rest of its context privately; as its prefill proceeds,
whole segments move from private to the cache, where an equal one that is there already makes the copy free.

A pass only reserves memory; the cache is evicted when a forward pass writes to it. So a request that enters late in a
pass still finds its prefix, as in SGLang.
"""

from __future__ import annotations

from evenkeel_simulator.engine.cache import CacheObserver, Match, RadixCache, Segment
from evenkeel_simulator.engine.request import EngineRequest


class Memory:
    """One replica's KV pool with its radix cache."""

    def __init__(
        self, capacity: int, *, prefix_cache: bool = True, observer: CacheObserver | None = None
    ) -> None:
        self.capacity = capacity
        self.cache = RadixCache(observer)
        self.private = 0
        """Tokens held by requests in the batch and not shared."""
        self._prefix_cache = prefix_cache

    @property
    def free(self) -> int:
        """Tokens of the pool that are free. Negative while reserved tokens are still to be evicted."""
        return self.capacity - self.cache.tokens - self.private

    @property
    def available(self) -> int:
        """Free and evictable tokens."""
        return self.capacity - self.cache.tokens - self.private + self.cache.evictable

    def claim(self, request: EngineRequest) -> int:
        """Lock the request's cached prefix; it no longer follows the cache. Returns the tokens to compute (>= 1).

        Sets `node`, `depth`, `path_tokens`, `matched_tokens`. Undone by `unclaim`.
        """
        node = request.node
        if node is None:
            node, request.depth, request.path_tokens = self.cache.match(request.prompt)
            request.matched_tokens = min(request.path_tokens, request.most_matched_tokens)
            self.cache.lock(node)
        else:  # its match is known; locked first, the node is no candidate for eviction
            self.cache.lock(node)
            self.cache.unfollow(request)
        request.node = node
        return request.context_tokens - request.matched_tokens

    def unclaim(self, request: EngineRequest, *, follow: bool = False) -> None:
        """Release the locked prefix. `follow`: the request waits, and follows the cache again."""
        node = request.node
        assert node is not None
        request.node = None
        if follow:
            self.cache.follow(request, Match(node, request.depth, request.path_tokens))
        self.cache.unlock(node)

    def take(self, request: EngineRequest, tokens: int) -> None:
        """Reserve pool tokens for a request; the caller has checked that they are available."""
        request.private_tokens += tokens
        self.private += tokens

    def grow(self, tokens: int) -> None:
        """The running batch takes `tokens` more in total; see `EngineRequest.held_tokens`."""
        self.make_free(tokens)
        self.private += tokens

    def make_free(self, tokens: int) -> None:
        """Evict until `tokens` are free (0: the reserved ones); the caller has checked that they are available."""
        if tokens > self.free:
            self.cache.evict(tokens - self.free)
            assert self.free >= tokens, "the KV pool is over-committed"

    def store(self, request: EngineRequest, computed_tokens: int) -> None:
        """The first `computed_tokens` of the input are computed: cache the whole segments among them."""
        if not self._prefix_cache:
            return
        fresh: list[Segment] = []
        end = request.path_tokens
        for segment in request.prompt[request.depth :]:
            if end + segment.tokens > computed_tokens:
                break
            end += segment.tokens
            fresh.append(segment)
        if fresh:
            self._give(request, end - request.path_tokens)
            self._move(request, fresh)
            request.depth += len(fresh)
            request.path_tokens = end

    def settle(self, request: EngineRequest, held_tokens: int) -> None:
        """Free private tokens beyond `held_tokens`, which were computed although the cache had them."""
        self._give(request, request.private_tokens - held_tokens)

    def release(self, request: EngineRequest, *, keep: bool) -> None:
        """The request leaves the batch. With `keep`, its prompt and output are cached; otherwise only stored segments
        stay."""
        request.private_tokens = request.held_tokens
        if keep and self._prefix_cache:
            fresh = self._fresh(request)
            # The last output token was never computed as input, but its segment includes it.
            lacking = sum([segment.tokens for segment in fresh]) - request.private_tokens
            if fresh and lacking <= self.available:
                self._give(request, request.private_tokens)
                self._move(request, fresh)
                self.make_free(0)
        self._give(request, request.private_tokens)
        self.unclaim(request)
        request.depth = request.path_tokens = 0

    @staticmethod
    def _fresh(request: EngineRequest) -> list[Segment]:
        """The segments below the request's path that the cache keeps."""
        retained, depth = request.retained(), request.depth
        if tuple(retained[:depth]) != tuple(request.prompt[:depth]):
            return []
        return list(retained[depth:])

    def _give(self, request: EngineRequest, tokens: int) -> None:
        request.private_tokens -= tokens
        self.private -= tokens

    def _move(self, request: EngineRequest, fresh: list[Segment]) -> None:
        """Store below the request's node and lock the end instead."""
        assert request.node is not None
        request.node = self.cache.extend(request.node, fresh)
