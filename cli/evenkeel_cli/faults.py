"""The faults of a file, each with its place."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class FileFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a file; its text is `file:line: document N (Kind name) path: message`."""

    file: str
    line: int | None = None
    """Line of the fault, from 1; None for the whole file."""
    document: int | None = None
    """Number of the document, from 1; None for a fault of the file or of its YAML."""
    resource: str = ""
    """Kind and name of the document's resource, as far as it has them."""
    path: str = ""
    """Path of the field; empty for the whole document."""
    message: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        if self.document is None:
            return f"{where}: {self.message}"
        title = f" ({self.resource})" if self.resource else ""
        return f"{where}: document {self.document}{title} {self.path or 'document'}: {self.message}"


class ManifestFaults(ValueError):
    """The file is invalid; `faults` has every fault."""

    def __init__(self, faults: Sequence[FileFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = tuple(faults)
