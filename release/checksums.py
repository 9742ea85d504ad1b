"""`SHA256SUMS`: the digest of every artifact, as `sha256sum` writes and checks it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from release.errors import ReleaseError

SUMS: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.sig"
_LINE: Final = re.compile(r"([0-9a-f]{64})  ([^/\n]+)")


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Every file in the folder except `SUMS` and its signature."""
    files = (path for path in sorted(folder.iterdir()) if path.name not in (SUMS, SIGNATURE))
    return {path.name: digest(path) for path in files}


def written(digests: Mapping[str, str]) -> bytes:
    """The contents of `SUMS`."""
    return "".join(f"{value}  {name}\n" for name, value in sorted(digests.items())).encode()


def read(data: bytes) -> dict[str, str]:
    """The digests in `SUMS`; raises `ReleaseError`."""
    found = {}
    for line in data.decode(errors="replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise ReleaseError(f"{SUMS}: {line[:80]!r} is not a digest and a file name")
        found[match[2]] = match[1]
    return found
