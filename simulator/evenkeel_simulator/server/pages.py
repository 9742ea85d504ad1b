"""Prompts as pages of tokens, and pages' hashes as SGLang publishes them.

A page is a segment whose key is its token ids as bytes, so a cached node identifies the tokens that it holds. Only whole pages
are shared, as in SGLang's radix cache: what is left of a prompt is computed each time.

A page's digest is SHA-256 over its predecessor's digest (the namespace's or nothing for the first page) and its ids, each as a
little-endian 32-bit number; the hash on the wire is the first eight bytes, read as a signed big-endian
number (SGLang 0.5.23 `mem_cache/utils.py`, `get_hash_str` and `hash_str_to_int64`).
"""

from __future__ import annotations

import hashlib
import struct
from array import array

from evenkeel_simulator.engine.cache import Segment

TOKEN_BYTES = 4


def pages_of(tokens: array[int], page_size: int) -> tuple[Segment, ...]:
    """The whole pages of a token sequence; a rest shorter than a page is left out."""
    data = tokens.tobytes()
    size_bytes = page_size * TOKEN_BYTES
    whole = len(data) - len(data) % size_bytes
    return tuple(
        [Segment(data[at : at + size_bytes], page_size) for at in range(0, whole, size_bytes)]
    )


def page_bytes(page: Segment) -> bytes:
    """The key of a segment that `pages_of` made."""
    assert isinstance(page.key, bytes)
    return page.key


def page_tokens(page: bytes) -> list[int]:
    """The token ids of a page's key."""
    return array("I", page).tolist()


def page_digest(parent: bytes | None, page: bytes) -> bytes:
    """SHA-256 that chains a page to the one before it (None: the first)."""
    little_endian = struct.pack(f"<{len(page) // TOKEN_BYTES}I", *array("I", page))
    return hashlib.sha256((parent or b"") + little_endian).digest()


def namespace_digest(segment: Segment) -> bytes:
    """What the first page of a namespace is chained to. With a salt alone it is SGLang's own (`compute_node_event_hash_values`)."""
    name = str(segment.key).encode()
    if isinstance(segment.key, tuple):
        adapter, cache_salt = segment.key
        if adapter is None:
            name = b"sglang-cache-salt-v1\0" + cache_salt.encode()
    return hashlib.sha256(name).digest()


def block_hash(digest: bytes) -> int:
    """The hash that travels in KV events."""
    return int.from_bytes(digest[:8], "big", signed=True)
