"""Puts keys, provenance, checksums and their signatures beside the artifacts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from release import checksums, provenance
from release.names import PROVENANCE, ROOT
from release.signing import Keys, key_id, sign

BUILDER: Final = "urn:evenkeel:make-release"
_SOURCES: Final = (
    "pyproject.toml",
    "constraints.txt",
    "release/requirements.txt",
    "images/Dockerfile",
)


def seal(out: Path, *, keys: Keys, commit: str, parameters: Mapping[str, str]) -> None:
    """Sign everything in the folder, which nothing may change afterwards."""
    for public in (keys.public, keys.chart_public):
        shutil.copyfile(public, out / public.name)
    statement = provenance.statement(
        checksums.digests(out),
        commit=commit,
        parameters=parameters,
        sources={name: checksums.digest(ROOT / name) for name in _SOURCES},
        builder=BUILDER,
    )
    envelope = provenance.sealed(
        statement, sign=lambda data: sign(keys.private, data), key_id=key_id(keys.public)
    )
    (out / PROVENANCE).write_bytes(envelope)
    # Last, so that the signed sums cover the keys and the provenance too.
    sums = checksums.written(checksums.digests(out))
    (out / checksums.SUMS).write_bytes(sums)
    (out / checksums.SIGNATURE).write_bytes(sign(keys.private, sums))
