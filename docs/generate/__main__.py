"""`make reference`: writes the reference pages that are generated from the code, the drawn pictures, and the example trace."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from docs.generate import (
    alerts,
    commandline,
    comparison,
    conditions,
    errors,
    exampletrace,
    failuremodes,
    fields,
    metrics,
    openapi,
    pictures,
    resources,
    routerconfig,
)

DOCS: Final = Path(__file__).parents[1]
_SOURCES: Final = (
    resources,
    routerconfig,
    metrics,
    commandline,
    openapi,
    pictures,
    errors,
    conditions,
    alerts,
    failuremodes,
    fields,
    exampletrace,
    comparison,
)


def files() -> dict[str, str]:
    """Path below docs/ → text, of every generated file."""
    return {path: text for source in _SOURCES for path, text in source.pages()}


def main() -> None:
    """Write all files."""
    wanted = files()
    for path, text in wanted.items():
        file = DOCS / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
