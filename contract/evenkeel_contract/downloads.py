"""How far the download of a model is: what its pod answers, and the operator reads."""

from __future__ import annotations

from typing import Final

import msgspec

PROGRESS_PATH: Final = "/v1/progress"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """`GET PROGRESS_PATH`."""

    written: int
    """Bytes on the volume."""
    total: int
    """Bytes of all files; 0 while they are not listed yet."""

    @property
    def percent(self) -> int:
        """Whole percent, never 100: the Job reports the end."""
        return min(99, max(0, 100 * self.written // self.total)) if self.total > 0 else 0


def decode_progress(body: bytes) -> Progress | None:
    """The progress of an answer; None if it is none."""
    try:
        return msgspec.json.decode(body, type=Progress)
    except msgspec.DecodeError:
        return None
