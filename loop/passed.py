"""What stages passed with: one file for each stage and fingerprint, outside the clone. Its text is the commit."""

from __future__ import annotations

import time
from pathlib import Path

VALID_S = 7 * 86_400.0
"""A week: what no file of the tree says changes too (the index of packages, the machine, certificates)."""


class Passed:
    """The notes in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def commit(self, stage: str, fingerprint: str, *, now_s: float | None = None) -> str | None:
        """The commit at which the stage passed with the same files, within a week."""
        note = self._note(stage, fingerprint)
        now_s = time.time() if now_s is None else now_s
        if not note.exists() or now_s - note.stat().st_mtime > VALID_S:
            return None
        return note.read_text().strip()

    def add(self, stage: str, fingerprint: str, commit: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob(f"{stage}@*"):
            if time.time() - old.stat().st_mtime > VALID_S:
                old.unlink(missing_ok=True)
        self._note(stage, fingerprint).write_text(commit + "\n")

    def _note(self, stage: str, fingerprint: str) -> Path:
        return self._folder / f"{stage}@{fingerprint}"
