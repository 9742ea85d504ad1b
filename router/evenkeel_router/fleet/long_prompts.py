"""Prompts of so many blocks that what the index does with them would stop the event loop: it is done in steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from evenkeel_fairshare.fleet.contract import ReplicaSet
from evenkeel_fairshare.prefix.exact import ExactIndex
from evenkeel_fairshare.prefix.index import PrefixIndex, namespace_seed, text_blocks
from evenkeel_fairshare.prefix.matching import STEP_BLOCKS, Depths

from evenkeel_router.api.inference import Hashed, Inference
from evenkeel_router.fleet.prediction import Pages

Index: TypeAlias = PrefixIndex | ExactIndex
Later: TypeAlias = Callable[[Iterator[None]], None]
"""Does steps, soon."""
LONG_BLOCKS: Final = 2 * STEP_BLOCKS
"""Longer prompts are looked up, stored and taken back in steps."""


class LookedUp(NamedTuple):
    """A long prompt, looked up in the index before it is matched."""

    hashed: Hashed | None
    """The text; None for a prompt with pages."""
    depths: Depths | None


NOT_LOOKED_UP: Final = LookedUp(None, None)


def at_once(steps: Iterator[None]) -> None:
    """Do all steps now."""
    for _ in steps:
        pass


def is_long(inference: Inference, pages: Pages | None, block_bytes: int) -> bool:
    """Whether a prompt has to be looked up before it is matched."""
    if pages is not None:
        return len(pages.hashes) > LONG_BLOCKS
    if inference.hashed is not None:
        return len(inference.hashed.hashes) > LONG_BLOCKS
    return len(inference.text) > LONG_BLOCKS * block_bytes


def look_up(
    index: Index, hashed: Hashed | None, pages: Pages | None, among: ReplicaSet
) -> Generator[None, None, LookedUp]:
    """Find how much of a long prompt each replica of `among` holds, in steps: of its pages, or else of its text."""
    hashes = pages.hashes if pages is not None else hashed.hashes if hashed is not None else ()
    return LookedUp(hashed, (yield from index.matching(hashes, among)))


def hashing(text: bytes, block_bytes: int, cache_salt: str) -> Generator[None, None, Hashed]:
    """Hash the text of a long prompt, in steps."""
    blocks: list[int] = []
    seed = namespace_seed(cache_salt)
    for start in range(0, len(text), STEP_BLOCKS * block_bytes):
        some = text[start : start + STEP_BLOCKS * block_bytes]
        blocks += text_blocks(some, block_bytes=block_bytes, seed=seed)
        seed = blocks[-1]
        yield
    return Hashed(blocks, block_bytes, len(text))


def keep(  # noqa: PLR0917 - as `truncate`
    index: Index, blocks: Sequence[int], held: int, slot: int, later: Later
) -> None:
    """A replica did not compute the prompt beyond the blocks that it held."""
    if len(blocks) <= LONG_BLOCKS:
        index.truncate(blocks, held, slot)
    else:
        later(index.truncating(blocks, held, slot))
