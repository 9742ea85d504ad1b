"""`CHANGELOG.md`: the section of the next version, the date of a release, and its notes."""

from __future__ import annotations

import re
from typing import Final

from release.errors import ReleaseError

FILE: Final = "CHANGELOG.md"
_SECTION: Final = re.compile(r"^## .*$", re.MULTILINE)


def dated(text: str, version: str, *, date: str) -> str:
    """The changelog with a date (ISO 8601) at a version that had none; raises `ReleaseError`."""
    heading = f"## Unreleased ({version})\n"
    if heading not in text:
        raise ReleaseError(f"{FILE} has no heading {heading.strip()!r} to date")
    return text.replace(heading, f"## {version} ({date})\n")


def opened(text: str, version: str) -> str:
    """The changelog with an empty section for the next version, before all others; raises `ReleaseError`."""
    first = _SECTION.search(text)
    if first is None or first[0].startswith("## Unreleased"):
        raise ReleaseError(f"{FILE}: the newest version has no date yet (make release-date)")
    return f"{text[: first.start()]}## Unreleased ({version})\n\n{text[first.start() :]}"


def notes(text: str, version: str) -> str:
    """What a released version changed, in Markdown without its heading; raises `ReleaseError`."""
    found = re.search(rf"^## {re.escape(version)} \(\d[\d-]+\)\n", text, re.MULTILINE)
    if found is None:
        raise ReleaseError(f"{FILE} has no date for {version}; run make release-date, and commit")
    return _SECTION.split(text[found.end() :])[0].strip() + "\n"
