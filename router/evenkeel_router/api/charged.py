"""The part of a request that replicas have charged already. The next replica does not charge it again (R11)."""

from __future__ import annotations

from typing import Final, NamedTuple


class Paid(NamedTuple):
    """What a request was charged at replicas that failed it, or that it was taken back from (R11)."""

    input: bool = False
    output_tokens: int = 0


UNPAID: Final = Paid()
WHOLE: Final = 2**31
"""More output tokens than any request has."""
