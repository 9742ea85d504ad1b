"""Time as a parameter: seconds of a clock that never goes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]
"""Seconds since some moment; the event loop's `time`."""
