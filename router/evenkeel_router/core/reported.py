"""What a replica's last report says about the replica itself; what it says about clients is in the ledger.

Place in the flow: report → **seen** → `/v1/state`, the next question.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The last report of one replica."""

    incarnation: str
    policy: str
    sequence: int
    received_s: float
    counted: bool
    """Whether the ledger takes it; not if the incarnation was given up before."""
