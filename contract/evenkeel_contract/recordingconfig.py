"""How routers record traffic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from evenkeel_contract.values import PRINTABLE, Length, Range


class RecordingStart(Enum):
    """When a router records traffic."""

    ON_REQUEST = (
        "OnRequest"  # after a request to the admin port, as `evenkeel record start` sends it
    )
    ALWAYS = "Always"  # from the start of the router


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingConfig:
    """Recording of traffic without text: lengths, times, and salted hashes of prompts (docs/how-to/plan.md)."""

    file: Annotated[str, Length(1, 4096), PRINTABLE]
    """Path of the recording. Its folder must exist. An older half is kept beside it with the suffix `.1`."""
    start: RecordingStart = RecordingStart.ON_REQUEST
    """When the router records: after a request to the admin port (OnRequest), or from its start (Always)."""
    max_bytes: Annotated[int, Range(1, 2**53)] = 64 * 1024 * 1024
    """Most bytes of both files. The oldest requests are dropped first."""
