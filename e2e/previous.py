"""The chart before the present version, from the history: what `helm upgrade` is tried from.

No version is published yet. So the previous one is the tree right before the commit that raised the chart's version:
chart, API and images as they were, with nothing of it kept in the present tree. A clone whose history does not reach
that far has none.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.rig.layout import REPOSITORY

_CHART: Final = "charts/evenkeel/Chart.yaml"


class NoHistoryError(Exception):
    """This clone has no previous version; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Previous:
    """A previous version."""

    version: str
    commit: str

    def unpack(self, folder: Path) -> Path:
        """Its tree, in `folder`."""
        archive = folder / "tree.tar"
        _git("archive", f"--output={archive}", self.commit)
        tree = folder / "tree"
        tree.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", tree], check=True)
        archive.unlink()
        return tree


def find_previous() -> Previous:
    """The chart's last version but one. Raises `NoHistoryError`."""
    raised = _git("log", "-1", "--format=%H", "-G^version:", "--", _CHART)
    if not raised:
        raise NoHistoryError(f"no commit of this clone changed {_CHART}")
    try:
        commit = _git("rev-parse", f"{raised}^")
        chart = _git("show", f"{commit}:{_CHART}")
    except NoHistoryError as error:
        raise NoHistoryError(
            f"the history of this clone does not reach beyond {raised[:12]}, "
            f"which raised the chart's version; fetch all of it ({error})"
        ) from error
    (version,) = re.findall(r"^version: (\S+)$", chart, re.MULTILINE)
    return Previous(version, commit)


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", REPOSITORY, *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise NoHistoryError("no git") from error
    if done.returncode != 0:
        raise NoHistoryError(done.stderr.strip())
    return done.stdout.strip()
