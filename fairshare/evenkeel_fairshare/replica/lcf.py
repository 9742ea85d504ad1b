"""Least counter first: VTC without its lift (VTC paper, §5.1), to show why the lift is needed.

The policy counts idle time as a claim to service. So a new or idle client starves the others until it has as much service as
they have. The policy must remember every client.
"""

from __future__ import annotations

from typing import ClassVar

from evenkeel_fairshare.replica.vtc import Counter, Vtc


class Lcf(Vtc):
    """Algorithm 2 without lines 7 to 13. For comparisons: it is fair only among clients that always wait."""

    name: ClassVar[str] = "LCF"

    def _lift(self, counter: Counter) -> None:
        pass

    def _forget(self) -> None:
        pass
