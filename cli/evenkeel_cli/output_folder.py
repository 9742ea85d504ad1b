"""Creates the folder for results before a long run, so that a missing folder cannot spoil the run at its end."""

from __future__ import annotations

import os
from pathlib import Path


def make_output_folder(folder: Path) -> None:
    """Create `folder`; raises `OSError` if files cannot be written to it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "cannot be written to", str(folder))
