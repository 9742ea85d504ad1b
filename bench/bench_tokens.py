"""Tokens mode for one prompt of 8k tokens: match + select (target 100 µs), and apart from it rendering, tokenising and hashing.

    PYTHONPATH=fairshare:contract:router python bench/bench_tokens.py [--blocks 1000000] [--replicas 64] [--prompts 1000]

Pages of 16 tokens: 512 hashes a prompt, twice to four times what text mode looks up. A prompt shares a system
prompt of 1k tokens with many, and its own 7k with one or two replicas. Of what a replica holds one tenth is only
expected (dispatched, no event yet), so that a match goes through both halves of the index. The tokenizer is
trained here on Python's own help (byte-level BPE); the peer of hashing is SGLang's chain with digests as
hexadecimal text, as it was written in Python. Timings are of single prompts on one core, asked for in random order.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from pydoc_data import topics
from statistics import median, quantiles
from typing import NamedTuple

from evenkeel_contract.heldpages import HeldPages, answer
from evenkeel_contract.kvevents import BlockStored
from evenkeel_fairshare.fleet.contract import Dispatch, replica_set
from evenkeel_fairshare.fleet.d2lpm_auto import AutoD2lpm
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import sglang_blocks
from evenkeel_router.prefix import template_worker
from evenkeel_router.prefix.model_tokenizers import ModelTokenizer
from evenkeel_router.prefix.prompts import Chat
from jinja2 import Template
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

PAGE_TOKENS = 16
PROMPT_TOKENS = 8192
SYSTEM_PAGES = 1024 // PAGE_TOKENS
OWN_PAGES = PROMPT_TOKENS // PAGE_TOKENS - SYSTEM_PAGES
CLIENTS = 32
LLAMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
"""The part of Llama 3's template that a conversation without tools runs."""


class Prompt(NamedTuple):
    """Client, text and replicas of a prompt."""

    client: str
    hashes: Sequence[int]
    slots: Sequence[int]


def make_prompts(blocks: int, replicas: int, rng: random.Random) -> list[Prompt]:
    """Prompts with `blocks` distinct pages in total; hashes are random."""
    system = [[rng.getrandbits(64) for _ in range(SYSTEM_PAGES)] for _ in range(CLIENTS)]
    return [
        Prompt(
            f"ns/tenant/{number % CLIENTS}",
            system[number % CLIENTS] + [rng.getrandbits(64) for _ in range(OWN_PAGES)],
            rng.sample(range(replicas), 1 + (number % 4 == 0)),
        )
        for number in range(blocks // OWN_PAGES)
    ]


def build_index(prompts: Sequence[Prompt], max_blocks: int) -> ExactIndex:
    index = ExactIndex(max_blocks=max_blocks)
    told = len(prompts[0].hashes) * 9 // 10
    for prompt in prompts:
        for slot in prompt.slots:
            index.insert(prompt.hashes, slot)
            index.stored(prompt.hashes[:told], slot)
    return index


def hexadecimal_chain(tokens: Sequence[int]) -> list[int]:
    """The peer: the chain, digest by digest as text."""
    prior, hashes = "", []
    for start in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
        digest = hashlib.sha256(bytes.fromhex(prior))
        for token in tokens[start : start + PAGE_TOKENS]:
            digest.update(token.to_bytes(4, "little"))
        prior = digest.hexdigest()
        hashes.append(int(prior[:16], 16))
    return hashes


def trained() -> ModelTokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=8000, show_progress=False)
    tokenizer.train_from_iterator(topics.topics.values(), trainer)
    files = {"tokenizer.json": tokenizer.to_str(), "chat_template.jinja": LLAMA}
    return ModelTokenizer({name: text.encode() for name, text in files.items()})


def times_us(times: int, step: Callable[[int], object]) -> list[float]:
    """Durations of `step(0)`, `step(1)`, …"""
    measured = []
    for number in range(times):
        start = time.perf_counter()
        step(number)
        measured.append((time.perf_counter() - start) * 1e6)
    return measured


def row(name: str, measured: Sequence[float], peer: Sequence[float] | None = None) -> str:
    p99 = quantiles(measured, n=100)[98]
    ratio = "" if peer is None else f"   peer/ours {median(peer) / median(measured):6.2f}"
    return f"{name:<34}{median(measured):9.1f} us   p99 {p99:9.1f} us{ratio}"


def held_rows(pages: int, rng: random.Random) -> list[str]:
    """Cost of an engine for routers that subscribe late: adding up each batch, and one copy per request."""
    held = HeldPages()
    hashes = [rng.getrandbits(64) - 2**63 for _ in range(pages)]
    chunks = [hashes[at : at + 512] for at in range(0, pages, 512)]
    batches = [[BlockStored(chunk, None, [], PAGE_TOKENS, None)] for chunk in chunks]
    adding = times_us(len(batches), lambda n: held.published(float(n), batches[n]))
    taking = times_us(10, lambda _: held.take())
    telling = times_us(10, lambda _: list(answer(held)))
    return [
        row("add up a batch of 512 pages", adding),
        row(f"copy {pages:,} pages", taking),
        row(f"report {pages:,} pages, including the copy", telling),
    ]


async def chat_rows(tokenizer: ModelTokenizer, pieces: Sequence[str]) -> list[str]:
    """A conversation of 8k tokens and one of 30: through the process of the templates, and by jinja2 in this process."""
    await tokenizer.start()
    in_process: dict[str, Template] = {}
    template_worker.compile_into({"default": LLAMA}, in_process)
    rows = []
    for name, texts in (("8k tokens", pieces), ("30 tokens", [piece[:150] for piece in pieces])):
        chats = [
            Chat(messages=[{"role": "user", "content": text}], tools=None, size_bytes=len(text))
            for text in texts
        ]

        def direct(number: int, chats: Sequence[Chat] = chats) -> str:
            asked = chats[number % len(chats)]
            return in_process["default"].render(
                messages=asked.messages, tools=None, bos_token="<s>"
            )

        measured = []
        for number in range(300):
            start = time.perf_counter()
            text = await tokenizer.text(chats[number % len(chats)])
            measured.append((time.perf_counter() - start) * 1e6)
            assert len(text) > 100
        rows.append(row(f"render a chat of {name}", measured, times_us(300, direct)))
    await tokenizer.close()
    another = trained()
    start = time.perf_counter()
    await another.start()
    rows.append(
        row("start the process of the templates", [(time.perf_counter() - start) * 1e6] * 2)
    )
    await another.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, repeats = random.Random(args.seed), min(200, args.prompts)
    prompts = make_prompts(args.blocks, args.replicas, rng)
    index = build_index(prompts, 4 * args.blocks)
    asked = rng.choices(prompts, k=args.prompts)
    everyone = replica_set(range(args.replicas))
    policy = AutoD2lpm()
    for slot in range(args.replicas):
        policy.joined(slot)
    outstanding = [rng.randrange(20) for _ in range(args.replicas)]

    def choose(number: int) -> None:
        prompt = asked[number]
        depth, holders = index.match(prompt.hashes, everyone)
        assert depth == len(prompt.hashes)
        request = Dispatch(prompt.client, PROMPT_TOKENS, longest=holders)
        slot = policy.select(request, everyone, outstanding)
        assert slot is not None
        policy.dispatched(request, slot)

    print(f"{len(index):,} blocks, {args.replicas} replicas, {args.prompts} prompts of 8k tokens")
    print(row("match + select + charge", times_us(args.prompts, choose)))
    print(
        row(
            "  match",
            times_us(args.prompts, lambda n: index.match(asked[n].hashes, everyone)),
        )
    )
    print(
        row(
            "insert (held already)",
            times_us(args.prompts, lambda n: index.insert(asked[n].hashes, asked[n].slots[0])),
        )
    )
    print("\n".join(held_rows(args.blocks, rng)))
    some = [[rng.randrange(128_000) for _ in range(PROMPT_TOKENS)] for _ in range(20)]
    assert hexadecimal_chain(some[0]) == sglang_blocks(some[0], page_tokens=PAGE_TOKENS)
    peer = times_us(repeats, lambda n: hexadecimal_chain(some[n % 20]))
    hashing = times_us(args.prompts, lambda n: sglang_blocks(some[n % 20], page_tokens=PAGE_TOKENS))
    print(row("hash 8k tokens", hashing, peer))
    tokenizer, text = trained(), "\n".join(topics.topics.values())
    per_token = len(text) / len(tokenizer.prompt(text))
    length = round(PROMPT_TOKENS * per_token)
    pieces = [text[at : at + length] for at in range(0, len(text) - length, 997)]
    measured = times_us(repeats, lambda n: tokenizer.prompt(pieces[n % len(pieces)]))
    print(row(f"tokenise 8k tokens ({length:,} letters)", measured))
    print("\n".join(asyncio.run(chat_rows(tokenizer, pieces))))


if __name__ == "__main__":
    main()
