"""What the machine has: read from nvidia-smi, where there is one."""

from __future__ import annotations

import subprocess
from typing import Final

_FIELDS: Final = ("name", "driver_version", "memory.total", "memory.used", "clocks.sm")
_NAMES: Final = ("gpu", "driver", "memory_total", "memory_used", "clock")
_LIMIT_S: Final = 10.0


def device() -> dict[str, str]:
    """The first GPU's name, driver, memory and clock; empty without a GPU."""
    command = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = done.stdout.splitlines()[0].split(",") if done.stdout else []
    return dict(zip(_NAMES, (value.strip() for value in values), strict=False))
