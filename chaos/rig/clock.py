"""Clocks that jump, by libfaketime: a process believes a file that says how far its wall clock is off.

The monotonic clock does not change: systems do not let it jump, and durations use it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

_LIBRARY: Final = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)


class WallClock:
    """The wall clock of one process."""

    def __init__(self, file: Path) -> None:
        if _LIBRARY is None:
            pytest.skip("no libfaketime here (make tools installs it)")
        self._file = file
        self.jump(0)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the process."""
        return {
            "LD_PRELOAD": str(_LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",  # seconds; reading the file at every call would take all the time
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, offset_s: int) -> None:
        """Set the offset of the clock from now on."""
        aside = self._file.with_suffix(".new")
        aside.write_text(f"{offset_s:+d}s\n")
        aside.rename(self._file)
