"""What a border of shared prefixes costs: the hit rate of one cache on the Mooncake traces, by `tenancy.cacheSharing`.

    python -m bench.cache_sharing shared/data/mooncake_*.jsonl.gz [--tenants 5] [--capacity-tokens 3000000]

The traces name no tenants. A conversation is all requests with the same first block that fewer than 1 % of the requests have
(blocks before it are system prompts); it belongs to one client, and clients are spread over the tenants by chance. The
cache keeps blocks of 512 tokens, the least recently used one leaves; `Client` has a border around every conversation.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from pathlib import Path

BLOCK_TOKENS = 512
POPULAR = 0.01

Blocks = Sequence[int]


def requests_of(path: Path) -> list[tuple[int, Blocks]]:
    """(input tokens, block ids) of each request, in order of arrival."""
    with gzip.open(path, "rt") as lines:
        read = [json.loads(line) for line in lines]
    read.sort(key=lambda one: one["timestamp"])
    return [(one["input_length"], one["hash_ids"]) for one in read]


def conversations(requests: Sequence[tuple[int, Blocks]]) -> list[int]:
    """The conversation of each request."""
    counts = Counter(block for _, blocks in requests for block in set(blocks))
    most = POPULAR * len(requests)
    return [
        next((block for block in blocks if counts[block] < most), blocks[0] if blocks else -1)
        for _, blocks in requests
    ]


def hit_rate(
    requests: Sequence[tuple[int, Blocks]], borders: Sequence[Hashable], capacity_tokens: int
) -> float:
    """Cached tokens over input tokens; a block is found within its border only."""
    cache: OrderedDict[tuple[Hashable, int], None] = OrderedDict()
    cached = 0
    for (_, blocks), border in zip(requests, borders, strict=True):
        missed = False
        for block in blocks:
            key = (border, block)
            missed = missed or key not in cache
            cached += BLOCK_TOKENS * (not missed)
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) * BLOCK_TOKENS > capacity_tokens:
            cache.popitem(last=False)
    return cached / sum(tokens for tokens, _ in requests)


def main() -> None:
    """Print a line per trace and capacity."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--tenants", type=int, default=5)
    parser.add_argument("--capacity-tokens", type=int, nargs="+", default=[3_000_000, 50_000_000])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for path in args.traces:
        requests = requests_of(path)
        clients = conversations(requests)
        rng = random.Random(args.seed)
        tenant_of = {client: rng.randrange(args.tenants) for client in dict.fromkeys(clients)}
        tenants = [tenant_of[client] for client in clients]
        borders = {"Service": [0] * len(requests), "Tenant": tenants, "Client": clients}
        for capacity in args.capacity_tokens:
            rates = {
                name: f"{hit_rate(requests, border, capacity):.3f}"
                for name, border in borders.items()
            }
            print(path.name, f"{len(tenant_of)} conversations, {capacity:,} tokens:", rates)


if __name__ == "__main__":
    main()
