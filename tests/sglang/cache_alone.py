"""SGLang's own radix cache and publisher of KV events, without an engine around them. Runs inside SGLang's Python.

Commands come as lines of JSON on standard input, answers go out likewise: `insert` and `match` with tokens, `evict` with a
number of tokens, `reset`, `publish` (what the cache did since, as the scheduler does after a step).
"""

import json
import sys
import time
from array import array

from sglang.srt.disaggregation.kv_events import KVEventBatch, ZmqEventPublisher
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


class Pool:
    """The memory: nothing is in it."""

    device = "cpu"

    def free(self, *_: object, **__: object) -> None:
        pass

    free_segment = free


def tell(answer: int) -> None:
    """Marked, since SGLang prints what it likes."""
    sys.stdout.write(f"answer {answer}\n")
    sys.stdout.flush()


def main(events: str, replay: str, page_tokens: str, kept: str) -> None:
    cache = RadixCache.create_simulated(
        mock_allocator=Pool(), page_size=int(page_tokens), enable_kv_cache_events=True
    )
    publisher = ZmqEventPublisher(0, events, replay, buffer_steps=int(kept))
    published = 0
    tell(0)
    for line in sys.stdin:
        what, given = json.loads(line)
        key = RadixKey(array("q", given)) if isinstance(given, list) else None
        answer = 0
        if what == "insert":
            cache.insert(InsertParams(key=key))
        elif what == "match":
            # Without the last token, as the scheduler asks: one is always computed.
            found = cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", given[:-1]))))
            answer = (
                found.device_prefix_len
                if hasattr(found, "device_prefix_len")
                else len(found.device_indices)  # 0.5.21
            )
        elif what == "evict":
            cache.evict(EvictParams(num_tokens=given))
        elif what == "reset":
            cache.reset()
        elif what == "publish":
            happened = cache.take_events()
            if happened:
                publisher.publish(KVEventBatch(ts=time.time(), events=happened))
                published += 1
            answer = published
        tell(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
