"""The table of stages, and which files of a tree each of them tests."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("stages.toml")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evenkeel"
"""Outside the clone: CI makes a new clone for every run."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A target of the Makefile that tests something."""

    name: str
    when: str
    """`always`, `changed` or `nightly`."""
    nightly: str
    """The target of the night, which may be a longer one."""
    beside: bool = False
    """Whether it computes and depends on no speed: it runs beside the others, at a lower priority."""


@dataclass(frozen=True, slots=True)
class Row:
    """Files, and the stages that test them."""

    files: Sequence[str]
    stages: frozenset[str]


@dataclass(frozen=True, slots=True)
class Table:
    """All stages, and the rows in their order."""

    stages: Sequence[Stage]
    rows: Sequence[Row]

    def stages_of(self, path: str) -> frozenset[str]:
        """The stages that test a file: those of the first row that names it, or all."""
        for row in self.rows:
            if any(fnmatchcase(path, pattern) for pattern in row.files):
                return row.stages
        return frozenset(stage.name for stage in self.stages)

    def fingerprint(self, stage: str, hashes: Mapping[str, str]) -> str:
        """One hash of all files that the stage tests, and of the Python that runs it. `hashes`: path → hash of the content."""
        parts = [platform.python_version(), platform.machine()]
        parts += (
            f"{path} {hashes[path]}" for path in sorted(hashes) if stage in self.stages_of(path)
        )
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def read_table(path: Path = TABLE) -> Table:
    """The table of a file. A stage that is not there, or a word that is not known, is an error."""
    document = tomllib.loads(path.read_text())
    stages = [
        Stage(
            one["name"],
            one["when"],
            one.get("nightly", one["name"]),
            beside=one.get("beside", False),
        )
        for one in document["stage"]
    ]
    rows = [Row(one["files"], frozenset(one["stages"])) for one in document["row"]]
    unknown = frozenset().union(*(row.stages for row in rows)) - {stage.name for stage in stages}
    words = {stage.when for stage in stages} - {"always", "changed", "nightly"}
    if unknown or words:
        raise ValueError(f"{path}: not known: {sorted(unknown | words)}")
    return Table(stages, rows)


def hashes_of(root: Path) -> dict[str, str]:
    """Path → hash of the content, of every file that git tracks or would add."""
    return {
        path: hashlib.sha256(_content(root / path)).hexdigest()
        for path in git_lines(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    }


def _content(path: Path) -> bytes:
    if path.is_symlink():
        return os.readlink(path).encode()
    return path.read_bytes() if path.is_file() else b""  # removed, but not from the index


def git_lines(root: Path, *arguments: str) -> Iterable[str]:
    """What a git command with `-z` prints, without doubles."""
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return dict.fromkeys(filter(None, done.stdout.split("\0")))
