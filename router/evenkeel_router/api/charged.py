"""What of a request replicas have charged already, so that the next replica does not charge it again (R11)."""

from __future__ import annotations

from typing import Final, NamedTuple


class Paid(NamedTuple):
    """What of a request was charged where the fleet took it back or failed it: not charged again (R11)."""

    input: bool = False
    output_tokens: int = 0


UNPAID: Final = Paid()
WHOLE: Final = 2**31
"""More output tokens than any request has."""
