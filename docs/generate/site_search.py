"""A hook of mkdocs: the search of the site ranks pages by the reader that they are for.

Users want how-tos and runbooks. Design notes and measurements have the same words and more text.
"""

from __future__ import annotations

from typing import Any, Final

BOOSTS: Final = {
    "how-to": 4.0,
    "tutorials": 3.0,
    "runbooks": 3.0,
    "explanation": 2.0,
    "reference": 1.0,
    "reference/errors.md": 4.0,
    "reference/limits.md": 4.0,
    "design": 0.05,
    "tree": 0.02,
}
"""Folder or page → factor of the score; `tree` has the files that are outside of docs/."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set the factor of a page, unless its front matter has one."""
    path = page.file.src_uri
    boost = BOOSTS.get(path) or BOOSTS.get(path.partition("/")[0])
    if boost is not None:
        page.meta.setdefault("search", {}).setdefault("boost", boost)
    return markdown
