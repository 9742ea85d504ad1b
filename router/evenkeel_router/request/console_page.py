"""The console's page: the files that `make console` built, and the headers that protect it.

The page contains no data. It reads them with the token or the API key that its user enters.
"""

from __future__ import annotations

from importlib import resources
from types import MappingProxyType
from typing import Final, NamedTuple

from evenkeel_contract.consolestate import PAGE_PATH

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Content security policy: nothing inline, nothing from another origin."""
HEADERS: Final = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-cache"),
)
DATA_HEADERS: Final = (
    ("x-content-type-options", "nosniff"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)
_TYPES: Final = MappingProxyType(
    {
        "index.html": "text/html; charset=utf-8",
        "console.js": "text/javascript; charset=utf-8",
        "console.css": "text/css; charset=utf-8",
        "icon.svg": "image/svg+xml",
    }
)
_FOLDER: Final = "page"


class PageFile(NamedTuple):
    """One file of the page; send it with `HEADERS`."""

    body: bytes
    content_type: str


def page_files() -> dict[str, PageFile]:
    """Path → file; the folder itself is `index.html`."""
    folder = resources.files("evenkeel_router").joinpath(_FOLDER)
    files = {
        f"{PAGE_PATH}{name}": PageFile(folder.joinpath(name).read_bytes(), content_type)
        for name, content_type in _TYPES.items()
    }
    return files | {PAGE_PATH: files[f"{PAGE_PATH}index.html"]}
