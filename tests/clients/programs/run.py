"""Runs whole programs of others against `evenkeel up`: agents, an evaluation, a client of rankings, gateways in front, and an issuer of
tokens.

`make test-programs` calls it, and `make test-clients` does. It writes the table of programs of docs/reference/clients.md. The exit status
is 1 if a check failed. A program that cannot be installed is named with the reason.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final

from tests.clients.fleet import ROOT, Fleet, documents, fleet, tenant
from tests.clients.programs import agents, evaluation, gateways, issuers, rankings
from tests.clients.programs.check import Found, Place, Program, write_table
from tests.clients.programs.environment import environment
from tests.clients.run import TARGETS as REAL
from tests.clients.run import Target

PROGRAMS: Final = (
    *agents.PROGRAMS,
    *evaluation.PROGRAMS,
    *rankings.PROGRAMS,
    *gateways.PROGRAMS,
    *issuers.PROGRAMS,
)
TARGETS: Final = {
    "simulator": Target(
        name="simulator",
        runtime={
            "runtime": "Simulator",
            "replicas": 2,
            # A pool with room for agents' prompts.
            "args": ["--profile=a100-llama3.1-8b", "--speed=4"],
        },
    ),
    "sglang": REAL["sglang"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=TARGETS, default="simulator")
    parser.add_argument("--only", default="", help="part of a name; the table is not written")
    given = parser.parse_args()
    target = TARGETS[given.target]
    is_real = target.name != "simulator"
    programs = [one for one in PROGRAMS if given.only.lower() in one.name.lower()]
    if is_real:
        programs = [one for one in programs if one.of_engines]
    installed = environment()
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        removing = opened.enter_context(_fleet(Path(name) / "removing", target, {}))
        kept = {"prefix": {"volatileLines": "Keep"}}
        keeping = (
            removing
            if is_real
            else opened.enter_context(_fleet(Path(name) / "keeping", target, kept))
        )
        found: list[Found] = []
        for number, program in enumerate(programs):
            folder = Path(name) / str(number)
            folder.mkdir()
            place = Place(
                programs=installed,
                fleet=removing,
                keeping=keeping,
                folder=folder,
                key=f"sk-{_tenant_of(program)}",
                model=ROOT / ".venv-sglang" / "model" if is_real else None,
            )
            found += _run(program, place)
    failed = [one for one in found if one.passed is False]
    print(f"{len(found)} checks of programs, {len(failed)} failed")
    if not given.only and not is_real:
        write_table(ROOT / "docs" / "reference" / "clients.md", found)
    return 1 if failed or not found else 0


def _fleet(folder: Path, target: Target, router: dict[str, Any]) -> AbstractContextManager[Fleet]:
    tenants = [tenant(_tenant_of(program)) for program in PROGRAMS]
    given = documents(target.runtime, router, tenants)
    return fleet(folder, given, target.arguments, target.environment)


def _tenant_of(program: Program) -> str:
    return re.sub(r"[^a-z0-9]+", "-", program.name.lower())


def _run(program: Program, place: Place) -> list[Found]:
    started = time.monotonic()
    if program.needs and shutil.which(program.needs) is None:
        reason = f"there is no {program.needs} here; `make tools` installs it"
        return [Found(program=program.name, check="installed", passed=None, figure=reason)]
    found = list(program.found(place))
    for one in found:
        mark = {True: "passed", False: "FAILED", None: "SKIPPED"}[one.passed]
        print(f"{mark} {one.program}: {one.check} {one.figure}", flush=True)
    print(f"{program.name}: {time.monotonic() - started:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
