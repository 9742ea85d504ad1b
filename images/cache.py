"""Results that clones and runs share, each named by a hash of what it was made from.

`EVENKEEL_CACHE` names another folder than `~/.cache/evenkeel`. What is there is whole: it is written beside its place and
renamed. Of several processes that lack the same result, one makes it and the others wait.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_USER: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
CACHE: Final = Path(os.environ.get("EVENKEEL_CACHE") or _USER / "evenkeel") / "e2e"
_KEPT_S: Final = 24 * 3600.0
"""Since its last use, so that clones with other sources do not take each other's results away."""


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Let one of all processes that make results of this name work at a time."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def use(target: Path, *, others: str) -> Path:
    """Note the use of a result, and delete results like it that no clone has used for a day."""
    os.utime(target)
    for old in target.parent.glob(others):
        if old.stat().st_mtime < time.time() - _KEPT_S:
            old.unlink()
    return target
