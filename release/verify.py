"""`python -m release.verify --key evenkeel.pub dist`: checks that the holder of a key released exactly these files.

It needs Python's standard library and openssl. Exit code 1 if anything differs; every fault is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from release import checksums, provenance
from release.errors import ReleaseError
from release.names import PROVENANCE
from release.signing import is_signed


def faults(folder: Path, key: Path) -> Iterator[str]:
    """One sentence for each difference between the folder and what the holder of `key` signed."""
    try:
        data = (folder / checksums.SUMS).read_bytes()
        signature = (folder / checksums.SIGNATURE).read_bytes()
        key.read_bytes()
    except OSError as error:
        yield f"{error.filename} cannot be read: {error.strerror}"
        return
    # Before anything is read from it: an unsigned list proves nothing.
    if not is_signed(key, data, signature):
        yield f"{checksums.SUMS} is not signed with {key}"
        return
    try:
        listed = checksums.read(data)
        yield from _differences(listed, checksums.digests(folder))
        yield from _provenance_faults(folder, key, listed)
    except ReleaseError as error:
        yield str(error)


def _differences(listed: provenance.Digests, found: provenance.Digests) -> Iterator[str]:
    for name in sorted(listed.keys() | found.keys()):
        if name not in found:
            yield f"{name} is missing"
        elif name not in listed:
            yield f"{name} is not in {checksums.SUMS}"
        elif listed[name] != found[name]:
            yield f"{name} has other bytes than the released file"


def _provenance_faults(folder: Path, key: Path, listed: provenance.Digests) -> Iterator[str]:
    path = folder / PROVENANCE
    if not path.exists():
        return  # reported as missing
    statement = provenance.opened(
        path.read_bytes(), lambda data, signature: is_signed(key, data, signature)
    )
    subjects = provenance.subjects_of(statement)
    if subjects != {name: value for name, value in listed.items() if name != PROVENANCE}:
        yield f"{PROVENANCE} is about other files than {checksums.SUMS}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.verify", description=__doc__)
    parser.add_argument("--key", type=Path, required=True, help="public key, PEM")
    parser.add_argument("folder", type=Path, help="folder with the artifacts")
    options = parser.parse_args(arguments)
    found = list(faults(options.folder, options.key))
    for fault in found:
        print(f"verify: {fault}", file=sys.stderr)
    if found:
        return 1
    count = len(checksums.read((options.folder / checksums.SUMS).read_bytes()))
    print(f"{count} files in {options.folder} are as released, signed with {options.key}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
