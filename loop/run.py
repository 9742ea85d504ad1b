"""Run the stages that a change needs, or all (`--nightly`): `python3 -m loop.run`.

Most suites wait more than they compute: for a start, a report, a rollout. So those that compute and depend on no speed run
beside them, at a lower priority (`beside` in stages.toml). A stage writes to `out/ci/<stage>.log`, which is printed as a
whole when it ends.

A stage that passed with the very same files is skipped, if the run in which it passed began in a new clone. That run left
a note outside the clone; where there is none, everything runs. A test that fails runs once more at the end of its stage.
More than three such tests in a run fail it, also if they pass then.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from loop.passed import Passed
from loop.stages import CACHE, ROOT, Stage, Table, git_lines, hashes_of, read_table

RETRIES = 3
"""More tests than this fail a run although they pass the second time: an unsteady test hides faults."""
REPORTS = "out/ci"
NICE = ("nice", "-n", "10")


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
    computed: float
    """Minutes of CPU of all processes that ended with it; a cluster's outlive it."""
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
    started_s: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """The lock of what is printed and of both lists."""

    def all(self) -> int:
        """Run the stages; returns the exit status. After a failure CI starts no further stage; the night goes on.

        The night runs one stage at a time: some of its stages measure.
        """
        is_new = not list(git_lines(self.root, "status", "--porcelain", "--ignored", "-z"))
        hashes = hashes_of(self.root)
        self.step("tools env")
        if self.is_nightly:
            for stage in self.table.stages:
                self.step(stage.nightly)
        else:
            stages = [stage for stage in self.table.stages if stage.when != "nightly"]
            lanes = [[one for one in stages if one.beside == beside] for beside in (False, True)]
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda lane: self.lane(lane, hashes, is_new=is_new), lanes))
        print(self.summary(), flush=True)
        return int(any(line.failed for line in self.lines) or len(self.retried) > RETRIES)

    def lane(self, stages: Iterable[Stage], hashes: Mapping[str, str], *, is_new: bool) -> None:
        """Run stages one after another, until one fails here or beside."""
        for stage in stages:
            if any(line.failed for line in self.lines):
                break
            self.stage(stage, self.table.fingerprint(stage.name, hashes), is_new=is_new)

    def stage(self, stage: Stage, fingerprint: str, *, is_new: bool) -> None:
        """Run a stage, or skip it. A stage that passed at once leaves a note, if the run began in a new clone: elsewhere a
        file that is not committed may be why it passed."""
        commit = self.passed.commit(stage.name, fingerprint) if stage.when == "changed" else None
        if commit is not None:
            outcome = f"skipped: no file of it changed since {commit}"
            self.lines.append(Line(stage.name, 0.0, 0.0, outcome))
            return
        passed, report = self.step(stage.name, beside=stage.beside)
        if is_new and passed and report is not None and report.executed and not report.failed:
            self.passed.add(stage.name, fingerprint, commit_of(self.root))

    def step(self, targets: str, *, beside: bool = False) -> tuple[bool, Report | None]:
        """Make targets and note the outcome; what fails runs a second time. Returns whether they passed in the end, and the
        report of the first time."""
        self.say(f"== {targets}")
        started_s = time.monotonic()
        status, computed_s, report = self.make(targets, "", beside=beside)
        outcome = _outcome(status, report)
        if status and report is not None and report.failed:
            with self.lock:
                self.retried += (f"{targets}: {name}" for name in report.failed)
                again = len(self.retried) <= RETRIES
            if again:
                self.say(f"== {targets}: {len(report.failed)} failed, and run again")
                status, more_s, second = self.make(targets, "--last-failed", beside=beside)
                computed_s += more_s
                outcome = f"{outcome}; the second time: {_outcome(status, second)}"
        minutes = (time.monotonic() - started_s) / 60
        self.lines.append(Line(targets, minutes, computed_s / 60, outcome, failed=status != 0))
        return status == 0, report

    def make(
        self, targets: str, arguments: str, *, beside: bool
    ) -> tuple[int, float, Report | None]:
        """Returns the exit status, seconds of CPU, and pytest's report if it wrote one. Prints the log when all has ended."""
        name = targets.replace(" ", "-")
        report, log = (self.root / REPORTS / f"{name}.{kind}" for kind in ("xml", "log"))
        report.unlink(missing_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        # Each commit draws other examples of properties, and a run of the same commit the same ones. Runs beside each other
        # must not mix up what failed last.
        words = [
            f"--junitxml={report.relative_to(self.root)}",
            f"--hypothesis-seed={int(commit_of(self.root), 16)}",
            f"-o cache_dir={REPORTS}/{name}.cache",
            arguments,
        ]
        environment = os.environ | ({"HYPOTHESIS_PROFILE": "nightly"} if self.is_nightly else {})
        with log.open("wb") as output:
            done = subprocess.Popen(
                [*(NICE if beside else ()), "make", *targets.split(), f"ARGS={' '.join(words).strip()}"],
                cwd=self.root, env=environment, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            _, status, used = os.wait4(done.pid, 0)
        done.returncode = os.waitstatus_to_exitcode(status)
        self.say(f"== {targets}: its output\n{log.read_text(errors='replace')}")
        return done.returncode, used.ru_utime + used.ru_stime, read_report(report)

    def say(self, text: str) -> None:
        with self.lock:
            print(text, flush=True)

    def summary(self) -> str:
        """The table of stages, and each test that ran twice."""
        width = max(len(line.name) for line in self.lines)
        parts = ["", "minutes  of CPU  stage"]
        parts += (
            f"{x.minutes:7.1f}  {x.computed:6.1f}  {x.name:{width}}  {x.outcome}"
            for x in self.lines
        )
        minutes = (time.monotonic() - self.started_s) / 60
        parts.append(f"{minutes:7.1f}  {sum(x.computed for x in self.lines):6.1f}  together")
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
