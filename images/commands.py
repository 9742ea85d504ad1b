"""Programs that run to their end."""

from __future__ import annotations

import subprocess
from pathlib import Path

from images.errors import BuildError


def run(*command: str | Path, stdin: str | None = None) -> str:
    """Run to the end; returns standard output; raises `BuildError` with what the program said."""
    words = [str(word) for word in command]
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(words[:6])} … failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
