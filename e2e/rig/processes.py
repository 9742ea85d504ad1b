"""Starting programs with their output in a file each, and waiting for what they promise."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from e2e.rig.errors import RigError


def start(
    name: str,
    command: Sequence[str | Path],
    *,
    logs: Path,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Run `command` in the background; its output goes to `<logs>/<name>.log`."""
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
        )


def wait_for(what: str, holds: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Poll until `holds()`; raises `RigError` naming `what` at the deadline."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise RigError(f"{what} did not come within {timeout_s:.0f} s")
        time.sleep(0.1)


def succeeds(*command: str | Path) -> bool:
    """Whether the program ends with 0."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0
