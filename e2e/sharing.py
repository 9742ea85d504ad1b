"""One cluster for all workers of a run: most tests share an installed chart, and the others run alone.

A test marked `alone` finds a cluster without Evenkeel, and no other test runs meanwhile. All other tests leave the
shared chart as it is. A worker waits for its turn before a test begins, so the test's time limit does not count that.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from e2e.installed import forget, install
from e2e.kubectl import Kubectl
from e2e.optionalapis import are_there, create, delete
from e2e.rig.definitions import definitions
from e2e.rig.errors import NotHereError
from e2e.rig.layout import STATE

_RUN: Final = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
_TURN: Final = STATE / "turn"
_SHARED: Final = STATE / "shared"
"""The run that installed the shared chart, and the optional APIs that came with it, a line each."""


class Turn:
    """The turn of one worker: shared with other workers, alone, or none."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._file: TextIO | None = None
        self._held = fcntl.LOCK_UN

    def take(self, *, alone: bool) -> None:
        """Wait for the turn. A worker that is alone removes the shared chart first."""
        wanted = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        if self._held != wanted:
            self._file = self._file or _opened(_TURN)
            fcntl.flock(self._file, wanted)
            self._held = wanted
            if alone:
                _withdraw(self._kubectl)

    def leave(self) -> None:
        """Give the turn back. The last one to leave removes the shared chart."""
        if self._file is not None:
            with self._file, suppress(BlockingIOError):  # another worker needs the chart
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _withdraw(self._kubectl)
            self._file, self._held = None, fcntl.LOCK_UN


def share(kubectl: Kubectl) -> None:
    """The chart, installed once in a run, with the optional APIs where they can be had."""
    with _shared() as (file, lines):
        if lines[:1] == [_RUN]:
            return
        forget(kubectl)
        delete(kubectl, lines[1:])
        try:
            files = {} if are_there(kubectl) else definitions()
        except NotHereError:
            files = {}
        _write(file, "unfinished", *files)
        create(kubectl, files)
        install(kubectl)
        _write(file, _RUN, *files)


def _withdraw(kubectl: Kubectl) -> None:
    with _shared() as (file, lines):
        if lines:
            forget(kubectl)
            delete(kubectl, lines[1:])
            _write(file)


@contextmanager
def _shared() -> Iterator[tuple[TextIO, list[str]]]:
    """The file and its lines; for one worker at a time."""
    with _opened(_SHARED) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file, file.read().split()


def _write(file: TextIO, *lines: str) -> None:
    file.truncate(0)
    file.write("\n".join(lines))
    file.flush()


def _opened(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a+")
