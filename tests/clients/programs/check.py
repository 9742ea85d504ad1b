"""What a check of a program found, and the table of all of them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.clients.fleet import Fleet
from tests.clients.programs.environment import Environment, NotInstalledError
from tests.clients.table import MARKS, between

LIMIT_S: Final = 1200.0
"""After this a program hangs. On a machine that does much else, one needs minutes to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where checks run."""

    programs: Environment
    fleet: Fleet
    keeping: Fleet
    """A fleet with `volatileLines: Keep`."""
    folder: Path
    """Empty, and the program's own."""
    key: str
    """An API key at both fleets."""
    model: Path | None
    """Folder of the model; None: the replicas are simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A row of the table."""

    program: str
    check: str
    passed: bool | None
    """None: it could not run here."""
    figure: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """The checks of one program. They yield what was found, and raise an exception for what is wrong."""

    name: str
    checks: Callable[[Place], Iterable[Found]]
    needs: str = ""
    """A command that must be on the path."""
    of_engines: bool = False
    """Whether the checks say more with a real engine."""

    def found(self, place: Place) -> Iterator[Found]:
        """Rows of this program; a check that raised an exception is one that failed."""
        try:
            yield from self.checks(place)
        except NotInstalledError as missing:
            yield Found(program=self.name, check="installed", passed=None, figure=str(missing))
        except Exception:
            print(traceback.format_exc(), flush=True)
            text = traceback.format_exc(limit=0).strip().splitlines()[-1]
            yield Found(program=self.name, check="all", passed=False, figure=text[:200])


def write_table(page: Path, found: Iterable[Found]) -> None:
    """Replace the table of programs."""
    lines = ["| program | check | | found |\n", "|---|---|---|---|\n"]
    lines += [
        f"| {one.program} | {one.check} | {MARKS[one.passed]} | {one.figure} |\n" for one in found
    ]
    between(page, "programs", lines)
