"""Cuts a prompt into blocks and hashes each block together with all before it.

The hash of block k stands for the whole prefix up to the end of block k. So one dictionary can hold a forest of prefixes
without pointers. Only whole blocks count: the rest of a prompt is not matched.

The hash is 64 bits wide and not cryptographic. A collision, even a forged one, sends a request to a replica without its
prefix. It does not change what a replica computes, since engines match tokens, not hashes.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256

from xxhash import xxh3_64, xxh3_64_intdigest

DEFAULT_BLOCK_BYTES = 256  # about 64 tokens of English, and 128 hashes for a prompt of 8k tokens

_64_BITS = 2**64 - 1


def text_blocks(
    text: str | bytes, *, block_bytes: int = DEFAULT_BLOCK_BYTES, seed: int = 0
) -> list[int]:
    """Prefix hashes of a text's whole blocks of `block_bytes` UTF-8 bytes, shortest prefix first.

    Texts with different seeds never share a prefix: one seed per model or adapter.
    """
    if block_bytes < 1:
        raise ValueError(f"block_bytes is {block_bytes}; it must be at least 1")
    # Lone surrogates are legal in JSON strings, so a request with one must not fail.
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    running = xxh3_64(seed=seed)
    update, digest = running.update, running.intdigest
    hashes = []
    for end in range(block_bytes, len(data) + 1, block_bytes):
        update(data[end - block_bytes : end])
        hashes.append(digest())  # of data[:end]: one pass over the data for all prefixes
    return hashes


def token_blocks(tokens: Sequence[int], *, block_tokens: int, seed: int = 0) -> list[int]:
    """Prefix hashes of whole blocks of `block_tokens` token ids (each in 32 bits)."""
    data = array("I", tokens)
    return text_blocks(data.tobytes(), block_bytes=block_tokens * data.itemsize, seed=seed)


def sglang_blocks(tokens: Sequence[int], *, page_tokens: int) -> list[int]:
    """The hashes of the whole pages of a prompt in SGLang's KV events, unsigned, shortest prefix first.

    Each is the first 8 bytes, big endian, of SHA-256 over the digest of the page before and the page's token
    ids. The first page has no digest before it, and ids have 32 bits, little endian (SGLang 0.5.21–0.5.23,
    `mem_cache/utils.py`: `get_hash_str`, `hash_str_to_int64`). That is the chain of requests without `extra_key`, `cache_salt`
    and adapter, and of engines without EAGLE, whose pages are of pairs of tokens.
    """
    if page_tokens < 1:
        raise ValueError(f"page_tokens is {page_tokens}; it must be at least 1")
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    data, page_bytes = ids.tobytes(), page_tokens * ids.itemsize
    digest = b""
    hashes = []
    for end in range(page_bytes, len(data) + 1, page_bytes):
        digest = sha256(digest + data[end - page_bytes : end]).digest()
        hashes.append(int.from_bytes(digest[:8], "big"))
    return hashes


def vllm_blocks(tokens: Sequence[int], *, page_tokens: int) -> list[int]:
    """The same for vLLM with `--prefix-caching-hash-algo sha256_cbor`.

    Each is the last 8 bytes, big endian, of SHA-256 over the canonical CBOR of (digest of the page before, token ids, None). The first
    page has `_VLLM_ROOT` before it (vLLM 0.32, `v1/core/kv_cache_utils.py`: `hash_block_tokens`). That is the chain of requests without
    adapter, media and `cache_salt`, and of engines without `PYTHONHASHSEED`.
    """
    if page_tokens < 1:
        raise ValueError(f"page_tokens is {page_tokens}; it must be at least 1")
    head = _cbor(_ARRAY, page_tokens)
    digest = _VLLM_ROOT
    hashes = []
    for end in range(page_tokens, len(tokens) + 1, page_tokens):
        page = b"".join([_cbor_id(token) for token in tokens[end - page_tokens : end]])
        digest = sha256(b"\x83\x58\x20%b%b%b\xf6" % (digest, head, page)).digest()
        hashes.append(int.from_bytes(digest[-8:], "big"))
    return hashes


_ARRAY = 0x80
"""CBOR's major type 4 (RFC 8949); numbers have type 0."""
_VLLM_ROOT = sha256(b"\x6evllm-none-hash").digest()


@lru_cache(maxsize=2**18)
def _cbor_id(token: int) -> bytes:
    return _cbor(0, token)


def _cbor(kind: int, number: int) -> bytes:
    """The head of an item: its major type, and a number in as few bytes as possible. Raises `OverflowError` below 0 and from 2**32 on."""
    if 0 <= number < 24:
        return bytes((kind | number,))
    size = 1 if number < 2**8 else 2 if number < 2**16 else 4
    return bytes((kind | 23 + size.bit_length(),)) + number.to_bytes(size, "big")


def unsigned(hashes: Iterable[int]) -> list[int]:
    """Unsigned hashes for an index, from an engine's signed ones."""
    return [key & _64_BITS for key in hashes]


def chained_blocks(blocks: Iterable[int], *, seed: int = 0) -> list[int]:
    """Prefix hashes of blocks that are 64-bit names already (trace `hash_ids`, segments)."""
    hashes = []
    running = seed
    for block in blocks:
        name = (block & _64_BITS).to_bytes(8, "little")  # engines send some as signed integers
        running = xxh3_64_intdigest(name, seed=running)
        hashes.append(running)
    return hashes
