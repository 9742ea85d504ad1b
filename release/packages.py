"""The wheel and the source distribution."""

from __future__ import annotations

import sys
from pathlib import Path

from release.names import ROOT
from release.programs import run


def build(out: Path, *, time_s: int) -> None:
    """Write both with all times set to `time_s` (seconds since the epoch): the same tree gives the same bytes."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT,
        environment={"SOURCE_DATE_EPOCH": str(time_s)})  # fmt: skip
