"""Chromium, for tests of the console."""

from __future__ import annotations

import shutil

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
NO_CHROMIUM = "Chromium is not installed: run `make tools` as root"
