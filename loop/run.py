"""Run the stages that a change needs, or all (`--nightly`): `python3 -m loop.run`.

A stage that passed with the very same files is skipped, if the run in which it passed began in a new clone. That run left
a note outside the clone; where there is none, everything runs. A test that fails runs once more at the end of its stage.
More than three such tests in a run fail it, also if they pass then.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loop.passed import Passed
from loop.stages import CACHE, ROOT, Stage, Table, git_lines, hashes_of, read_table

RETRIES = 3
"""More tests than this fail a run although they pass the second time: an unsteady test hides faults."""
REPORTS = "out/ci"


@dataclass(frozen=True, slots=True)
class Report:
    """What pytest wrote of one run."""

    executed: int
    failed: Sequence[str]
    """Names of the tests that failed or could not be set up."""


@dataclass(slots=True)
class Line:
    """What became of a stage: a line of the table at the end."""

    name: str
    minutes: float
    outcome: str
    failed: bool = False


@dataclass(slots=True)
class Run:
    """One run of CI in a tree."""

    root: Path
    table: Table
    passed: Passed
    is_nightly: bool = False
    lines: list[Line] = field(default_factory=list)
    retried: list[str] = field(default_factory=list)

    def all(self) -> int:
        """Run the stages; returns the exit status. CI ends at the first failure, the night goes on."""
        is_new = not list(git_lines(self.root, "status", "--porcelain", "--ignored", "-z"))
        hashes = hashes_of(self.root)
        self.step("tools env")
        for stage in self.table.stages:
            if self.lines[-1].failed and not self.is_nightly:
                break
            if self.is_nightly:
                self.step(stage.nightly)
            elif stage.when != "nightly":
                self.stage(stage, self.table.fingerprint(stage.name, hashes), is_new=is_new)
        print(self.summary(), flush=True)
        return int(any(line.failed for line in self.lines) or len(self.retried) > RETRIES)

    def stage(self, stage: Stage, fingerprint: str, *, is_new: bool) -> None:
        """Run a stage, or skip it. A stage that passed at once leaves a note, if the run began in a new clone: elsewhere a
        file that is not committed may be why it passed."""
        commit = self.passed.commit(stage.name, fingerprint) if stage.when == "changed" else None
        if commit is not None:
            outcome = f"skipped: no file of it changed since {commit}"
            self.lines.append(Line(stage.name, 0.0, outcome))
            return
        report = self.step(stage.name)
        if (
            is_new
            and report is not None
            and report.executed
            and not report.failed
            and not self.lines[-1].failed
        ):
            self.passed.add(stage.name, fingerprint, commit_of(self.root))

    def step(self, targets: str) -> Report | None:
        """Make targets and note the outcome; what fails runs a second time. Returns the report of the first time."""
        print(f"== {targets}", flush=True)
        started_s = time.monotonic()
        status, report = self.make(targets, "")
        outcome = _outcome(status, report)
        if status and report is not None and report.failed:
            self.retried += (f"{targets}: {name}" for name in report.failed)
            if len(self.retried) <= RETRIES:
                print(f"== {targets}: {len(report.failed)} failed, and run again", flush=True)
                status, again = self.make(targets, "--last-failed")
                verdict = _outcome(status, again)
                outcome = f"{outcome}; the second time: {verdict}"
        minutes = (time.monotonic() - started_s) / 60
        self.lines.append(Line(targets, minutes, outcome, failed=status != 0))
        return report

    def make(self, targets: str, arguments: str) -> tuple[int, Report | None]:
        """Returns the exit status, and pytest's report if it wrote one."""
        report = self.root / REPORTS / f"{targets.replace(' ', '-')}.xml"
        report.unlink(missing_ok=True)
        # Each commit draws other examples of properties, and a run of the same commit the same ones.
        seed = int(commit_of(self.root), 16)
        arguments = (
            f"--junitxml={report.relative_to(self.root)} --hypothesis-seed={seed} {arguments}"
        )
        environment = os.environ | ({"HYPOTHESIS_PROFILE": "nightly"} if self.is_nightly else {})
        done = subprocess.run(
            ["make", *targets.split(), f"ARGS={arguments.strip()}"],
            cwd=self.root, env=environment, check=False,
        )  # fmt: skip
        return done.returncode, read_report(report)

    def summary(self) -> str:
        """The table of stages, and each test that ran twice."""
        width = max(len(line.name) for line in self.lines)
        parts = ["", "minutes  stage"]
        parts += (f"{x.minutes:7.1f}  {x.name:{width}}  {x.outcome}" for x in self.lines)
        parts.append(f"{sum(line.minutes for line in self.lines):7.1f}  together")
        parts.append(f"{len(self.retried)} failed the first time (at most {RETRIES} may)")
        parts += (f"  {name}" for name in self.retried)
        return "\n".join(parts)


def _outcome(status: int, report: Report | None) -> str:
    if status:
        return "failed" if report is None else f"failed: {len(report.failed)} tests"
    if report is None or not report.executed:
        return "done, without a test"
    return f"passed: {report.executed} tests"


def read_report(path: Path) -> Report | None:
    """What a file in JUnit's format says."""
    if not path.exists():
        return None
    cases = list(ET.parse(path).iter("testcase"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Report(len(cases) - skipped, list(dict.fromkeys(failed)))


def commit_of(root: Path) -> str:
    """The commit that is checked out, short."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the stages that a change needs.")
    parser.add_argument("--nightly", action="store_true", help="all stages, in their long forms")
    options = parser.parse_args()
    passed = Passed(CACHE / "passed")
    return Run(ROOT, read_table(), passed, is_nightly=options.nightly).all()


if __name__ == "__main__":
    sys.exit(main())
