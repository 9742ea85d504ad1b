"""Where a verb writes its results, made sure of before the work: minutes of it must not end in a closed door."""

from __future__ import annotations

import os
from pathlib import Path


def make_sure_of(folder: Path) -> None:
    """Make `folder`; raises `OSError` where nothing could be written to it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "cannot be written to", str(folder))
