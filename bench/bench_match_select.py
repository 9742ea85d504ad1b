"""Hash + match + select for one prompt, and the index's memory, beside a simple peer (DESIGN §9).

    PYTHONPATH=fairshare python bench/bench_match_select.py [--blocks 1000000] [--replicas 64] [--prompts 2000]

Prompts have 8k tokens (32 KiB of text): a system prompt of their client, shared by many replicas, then a
document of their own, held by one or two. The peer keeps a set of block hashes per replica, hashes by the
same function, and walks every replica's set: what a router writes first. Prompts are asked for in random
order, so that the index is met cold, as in a router. Timings are medians of single prompts on one core.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import median, quantiles

from evenkeel_fairshare.fleet.contract import Dispatch, ReplicaSet, replica_set
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm
from evenkeel_fairshare.prefix.index import DEFAULT_BLOCK_BYTES, PrefixIndex, text_blocks

PROMPT_BYTES = 32 * 1024  # 8k tokens at 4 bytes each
SYSTEM_BYTES = 4 * 1024
CLIENTS = 32

Prompt = tuple[str, str, Sequence[int]]  # client, text, the slots that hold it


class PerReplicaSets:
    """The peer: one set of hashes for each replica. Unbounded."""

    def __init__(self, replicas: int) -> None:
        self._held: list[set[int]] = [set() for _ in range(replicas)]

    def insert(self, hashes: Sequence[int], slot: int) -> None:
        self._held[slot].update(hashes)

    def match(self, hashes: Sequence[int]) -> tuple[int, ReplicaSet]:
        depths = [sum(1 for _ in takewhile(held.__contains__, hashes)) for held in self._held]
        longest = max(depths)
        return longest, replica_set([s for s, depth in enumerate(depths) if depth == longest])


def make_prompts(blocks: int, replicas: int, rng: random.Random) -> list[Prompt]:
    """As many prompts as make up `blocks` distinct blocks."""
    letters = "abcdefghijklmnopqrstuvwxyz     "
    system = ["".join(rng.choices(letters, k=SYSTEM_BYTES)) for _ in range(CLIENTS)]
    own = (PROMPT_BYTES - SYSTEM_BYTES) // DEFAULT_BLOCK_BYTES
    pool = "".join(rng.choices(letters, k=1_000_000))
    prompts = []
    for number in range(blocks // own):
        client = number % CLIENTS
        start = rng.randrange(len(pool) - PROMPT_BYTES)
        head = f"{number:08d}"  # makes the document's blocks distinct from every other's
        document = head + pool[start : start + PROMPT_BYTES - SYSTEM_BYTES - len(head)]
        slots = rng.sample(range(replicas), 1 + (number % 4 == 0))
        prompts.append((f"ns/tenant/{client}", system[client] + document, slots))
    return prompts


def time_each(prompts: Sequence[Prompt], step: Callable[[Prompt], object]) -> list[float]:
    """Microseconds of `step` for each prompt."""
    times_us = []
    for prompt in prompts:
        start = time.perf_counter()
        step(prompt)
        times_us.append((time.perf_counter() - start) * 1e6)
    return times_us


def resident_bytes() -> int:
    """Resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def memory_of(build: Callable[[], object], blocks: int) -> tuple[object, float]:
    """What `build` returns, and the bytes by which the process grew, per block."""
    gc.collect()
    before = resident_bytes()
    built = build()
    gc.collect()
    return built, (resident_bytes() - before) / blocks


def row(name: str, times_us: Sequence[float], peer_us: float | None = None) -> str:
    p99 = quantiles(times_us, n=100)[98]
    ratio = "" if peer_us is None else f"   peer/ours {peer_us / median(times_us):6.2f}"
    return f"{name:<34}{median(times_us):9.1f} us   p99 {p99:9.1f} us{ratio}"


def build_index(prompts: Sequence[Prompt], max_blocks: int) -> PrefixIndex:
    index = PrefixIndex(max_blocks=max_blocks)
    for _, text, slots in prompts:
        for slot in slots:
            index.insert(text_blocks(text), slot)
    return index


def build_peer(prompts: Sequence[Prompt], replicas: int) -> PerReplicaSets:
    peer = PerReplicaSets(replicas)
    for _, text, slots in prompts:
        for slot in slots:
            peer.insert(text_blocks(text), slot)
    return peer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    prompts = make_prompts(args.blocks, args.replicas, rng)

    index, index_bytes = memory_of(lambda: build_index(prompts, 2 * args.blocks), args.blocks)
    peer, peer_bytes = memory_of(lambda: build_peer(prompts, args.replicas), args.blocks)
    assert isinstance(index, PrefixIndex) and isinstance(peer, PerReplicaSets)
    asked = rng.choices(prompts, k=args.prompts)
    everyone = replica_set(range(args.replicas))
    policy = AutoD2lpm()
    for slot in range(args.replicas):
        policy.joined(slot)
    outstanding = [rng.randrange(20) for _ in range(args.replicas)]

    def select(client: str, longest: ReplicaSet) -> None:
        tokens = PROMPT_BYTES // 4
        request = Dispatch(client, tokens, longest=longest, matched_tokens=tokens - 1)
        slot = policy.select(request, everyone, outstanding)
        assert slot is not None
        policy.dispatched(request, slot)

    def ours(prompt: Prompt) -> None:
        select(prompt[0], index.match(text_blocks(prompt[1]), everyone).replicas)

    def theirs(prompt: Prompt) -> None:
        select(prompt[0], peer.match(text_blocks(prompt[1]))[1])

    for _, text, _ in asked[:100]:
        hashes = text_blocks(text)
        assert index.match(hashes, everyone) == peer.match(hashes)
    hashed = {prompt[1]: text_blocks(prompt[1]) for prompt in asked}
    whole_peer = time_each(asked, theirs)
    whole = time_each(asked, ours)
    print(f"{len(index):,} blocks, {args.replicas} replicas, {args.prompts} prompts of 8k tokens")
    print(row("hash + match + select, peer", whole_peer))
    print(row("hash + match + select", whole, median(whole_peer)))
    print(row("  hash", time_each(asked, lambda p: text_blocks(p[1]))))
    print(row("  match", time_each(asked, lambda p: index.match(hashed[p[1]], everyone))))
    print(
        row("  select + charge, matched", time_each(asked, lambda p: select(p[0], ReplicaSet(2))))
    )
    print(row("  select + charge, no match", time_each(asked, lambda p: select(p[0], everyone))))
    print(
        row(
            "insert (held already)", time_each(asked, lambda p: index.insert(hashed[p[1]], p[2][0]))
        )
    )
    fresh = make_prompts(args.prompts * 128, args.replicas, rng)[: args.prompts]
    new = [(client, "new" + text, slots) for client, text, slots in fresh]
    hashed_new = {prompt[1]: text_blocks(prompt[1]) for prompt in new}
    print(
        row("insert (all new)", time_each(new, lambda p: index.insert(hashed_new[p[1]], p[2][0])))
    )
    print(f"memory: {index_bytes:.0f} MB per million blocks (peer {peer_bytes:.0f} MB)")


if __name__ == "__main__":
    main()
