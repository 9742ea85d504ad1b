"""How much of a shared bound one party may hold (dynamic thresholds; Choudhury and Hahne, 1998)."""

from __future__ import annotations

from typing import Final

GREED: Final = 8
"""One party alone gets 8/9 of the bound; n parties that flood get 8/(8n + 1) each."""


def may_hold_more(held: int, free: int) -> bool:
    """Whether a party that holds `held` may take more, when that leaves `free` (0 or more) for all."""
    return held <= GREED * free
