"""How much of a shared bound one party may hold (dynamic thresholds; Choudhury and Hahne, 1998)."""

from __future__ import annotations

from typing import Final

SHARE_FACTOR: Final = 8
"""One party alone gets 8/9 of the bound; n parties that ask for more get 8/(8n + 1) each."""


def may_hold_more(held: int, free: int) -> bool:
    """Whether a party that holds `held` may take more, when that leaves `free` (0 or more) for all."""
    return held <= SHARE_FACTOR * free
