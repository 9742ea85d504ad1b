"""Chromium, for tests of the console."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
NO_CHROMIUM = "Chromium is not installed: run `make tools` as root"
PACKAGES = Path(__file__).parents[2] / "console/node_modules"
"""What drives the browser."""
CONSOLE_MARKS = [
    pytest.mark.console,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM),
    pytest.mark.skipif(
        shutil.which("node") is None or not PACKAGES.exists(),
        reason="the packages of console/ are not installed: run `make console`",
    ),
]
"""Marks of a test file that opens the console in a browser."""
