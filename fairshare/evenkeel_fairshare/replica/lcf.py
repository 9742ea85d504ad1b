"""Least counter first: VTC without its lift (VTC paper, §5.1), to show what the lift is for.

A client that was idle or is new is owed all that the others got meanwhile, and starves them until it has caught up. So
the policy must remember every client it ever saw.
"""

from __future__ import annotations

from typing import ClassVar

from evenkeel_fairshare.replica.vtc import Counter, Vtc


class Lcf(Vtc):
    """Algorithm 2 without lines 7 to 13. For comparisons: fair only among clients that never stop waiting."""

    name: ClassVar[str] = "LCF"

    def _lift(self, counter: Counter) -> None:
        pass

    def _forget(self) -> None:
        pass
