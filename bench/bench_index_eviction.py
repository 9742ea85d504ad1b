"""How much the index's clock loses against exact "least recently used", by hit rate in blocks.

    PYTHONPATH=fairshare python bench/bench_index_eviction.py [--requests 20000]

Documents of 20 blocks, the first 5 shared by ten documents each, asked for by Zipf's law; the index holds a
part of all blocks. Both see the same requests.
"""

from __future__ import annotations

import argparse
import random
from collections import OrderedDict
from collections.abc import Sequence

from evenkeel_fairshare.fleet.contract import replica_set
from evenkeel_fairshare.prefix.index import PrefixIndex, token_blocks

DOCUMENTS = 3000
SHARED_BLOCKS = 5
OWN_BLOCKS = 15


class ExactLru:
    """Blocks of one replica in the order of use; leaves go first."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, hashes: Sequence[int]) -> int:
        return next((d for d, key in enumerate(hashes) if key not in self._blocks), len(hashes))

    def insert(self, hashes: Sequence[int]) -> None:
        for key in reversed(hashes):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)


def document(number: int) -> list[int]:
    """Block hashes of one document."""
    shared = [number // 10 * SHARED_BLOCKS + block for block in range(SHARED_BLOCKS)]
    own = [10**6 + number * OWN_BLOCKS + block for block in range(OWN_BLOCKS)]
    return token_blocks([*shared, *own], block_tokens=1)


def hit_rates(max_blocks: int, exponent: float, requests: int) -> tuple[float, float]:
    """The clock's and exact LRU's."""
    rng = random.Random(1)
    popularity = [1 / (rank + 1) ** exponent for rank in range(DOCUMENTS)]
    clock, exact, replica = (
        PrefixIndex(max_blocks=max_blocks),
        ExactLru(max_blocks),
        replica_set([0]),
    )
    documents = [document(number) for number in range(DOCUMENTS)]
    hits = [0, 0]
    for hashes in rng.choices(documents, popularity, k=requests):
        hits[0] += clock.match(hashes, replica).blocks
        hits[1] += exact.match(hashes)
        clock.insert(hashes, 0)
        exact.insert(hashes)
    asked = requests * (SHARED_BLOCKS + OWN_BLOCKS)
    return hits[0] / asked, hits[1] / asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    requests = parser.parse_args().requests
    print("blocks held   Zipf   clock     LRU")
    for max_blocks in (2_000, 10_000, 25_000):
        for exponent in (0.6, 1.0):
            clock, exact = hit_rates(max_blocks, exponent, requests)
            print(f"{max_blocks:>11}   {exponent:4}  {clock:6.3f}  {exact:6.3f}")


if __name__ == "__main__":
    main()
