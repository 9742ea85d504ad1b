"""A run of CI: what is skipped, what runs twice, and what fails it. The Makefile is a small one, whose tests fail on request."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from loop.passed import VALID_S, Passed
from loop.run import Line, Run
from loop.stages import Row, Stage, Table

MAKEFILE = """\
.PHONY: tools env fast heavy none
tools env:
none:
\t@echo SKIPPED
fast heavy:
\t@sh suite.sh $@ $(ARGS)
"""
SUITE = """\
# The tests that a file names fail; those named in another pass the second time.
report=${2#--junitxml=}
broken=$(cat "$1.broken" 2>/dev/null)
case "$*" in *--last-failed*) ;; *) broken="$broken $(cat "$1.unsteady" 2>/dev/null)" ;; esac
{
  echo '<testsuites><testsuite>'
  for name in $broken; do echo "<testcase classname=\\"c\\" name=\\"$name\\"><failure/></testcase>"; done
  echo '<testcase classname="c" name="good"/><testcase classname="c" name="absent"><skipped/></testcase>'
  echo '</testsuite></testsuites>'
} > "$report"
[ -z "$(echo $broken)" ]
"""
TABLE = Table(
    [
        Stage("fast", "always", "fast"),
        Stage("none", "changed", "none"),
        Stage("heavy", "changed", "heavy"),
    ],
    [Row(["*.md"], frozenset())],
)
BESIDE = Table(
    [TABLE.stages[0], Stage("heavy", "changed", "heavy", beside=True), TABLE.stages[1]], []
)
MEET = """\
echo "$1 begins at $(nice)"
touch ../$1.begun
until [ -e ../fast.begun ] && [ -e ../heavy.begun ]; do sleep 0.01; done
echo "$1 met the other, with $5"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A new clone of a small repository."""
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "Makefile").write_text(MAKEFILE)
    (folder / "suite.sh").write_text(SUITE)
    (folder / ".gitignore").write_text("/out\n")
    _git(folder, "init", "--quiet")
    _commit(folder)
    return folder


def _git(folder: Path, *arguments: str) -> None:
    identity = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    subprocess.run(["git", *arguments], cwd=folder, check=True, env=os.environ | identity)


def _commit(folder: Path) -> None:
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", "x")


def _run(clone: Path, *, new: bool = True, table: Table = TABLE) -> tuple[int, Run]:
    if new:
        _git(clone, "clean", "-fdxq")
    run = Run(clone, table, Passed(clone.parent / "passed"))
    return run.all(), run


def _outcomes(run: Run) -> dict[str, str]:
    return {line.name: line.outcome.partition(":")[0] for line in run.lines[1:]}


def test_without_a_note_every_stage_runs(clone: Path) -> None:
    status, run = _run(clone)
    assert status == 0
    assert _outcomes(run) == {"fast": "passed", "none": "done, without a test", "heavy": "passed"}


def test_a_stage_is_skipped_if_it_passed_with_the_same_files(clone: Path) -> None:
    _run(clone)
    (clone / "page.md").write_text("no stage's")
    _commit(clone)
    status, run = _run(clone)
    assert status == 0
    want = {"fast": "passed", "none": "done, without a test", "heavy": "skipped"}
    assert _outcomes(run) == want, "what ran no test did not pass"
    assert "skipped: no file of it changed since " in run.summary()


def test_a_changed_file_runs_the_stage_again(clone: Path) -> None:
    _run(clone)
    (clone / "code.py").write_text("")
    _commit(clone)
    assert _outcomes(_run(clone)[1])["heavy"] == "passed"


def test_a_run_with_files_that_are_not_committed_leaves_no_note(clone: Path) -> None:
    (clone / "out").mkdir()
    (clone / "out" / "forgotten").write_text("")
    _run(clone, new=False)
    assert _outcomes(_run(clone)[1])["heavy"] == "passed"


def test_a_note_counts_for_a_week(tmp_path: Path) -> None:
    passed = Passed(tmp_path)
    passed.add("heavy", "f", "c0ffee")
    noted_s = (tmp_path / "heavy@f").stat().st_mtime
    assert passed.commit("heavy", "f", now_s=noted_s + VALID_S - 1) == "c0ffee"
    assert passed.commit("heavy", "f", now_s=noted_s + VALID_S + 1) is None
    assert passed.commit("heavy", "g", now_s=noted_s) is None


def test_an_unsteady_test_is_listed_and_its_stage_leaves_no_note(clone: Path) -> None:
    (clone / "heavy.unsteady").write_text("one two")
    _commit(clone)
    status, run = _run(clone)
    assert status == 0
    assert run.retried == ["heavy: c::one", "heavy: c::two"]
    assert "failed: 2 tests; the second time: passed: 1 tests" in run.summary()
    assert "heavy: c::two" in run.summary()
    assert _outcomes(_run(clone)[1])["heavy"] == "failed"


def test_more_than_three_unsteady_tests_in_all_stages_fail_the_run(clone: Path) -> None:
    (clone / "fast.unsteady").write_text("one two")
    (clone / "heavy.unsteady").write_text("three four")
    _commit(clone)
    status, run = _run(clone)
    assert status == 1
    assert len(run.retried) == 4


def test_a_broken_test_fails_the_run_and_ends_it(clone: Path) -> None:
    (clone / "fast.broken").write_text("one")
    _commit(clone)
    status, run = _run(clone)
    assert status == 1
    assert list(_outcomes(run)) == ["fast"]
    assert "failed: 1 tests; the second time: failed: 1 tests" in run.summary()


def test_a_stage_that_computes_runs_beside_and_gives_way(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (clone / "suite.sh").write_text(MEET + SUITE)
    _commit(clone)
    status, run = _run(clone, table=BESIDE)
    assert status == 0
    assert _outcomes(run).keys() == {"fast", "heavy", "none"}
    nices = {}
    output = capsys.readouterr().out
    for name in ("fast", "heavy"):
        # Its output is apart from the other's, and so is what pytest notes of the last failures.
        words = (
            rf"^{name} begins at (\d+)\n{name} met the other, with cache_dir=out/ci/{name}.cache$"
        )
        block = re.search(words, output, re.MULTILINE)
        assert block is not None, output
        nices[name] = int(block[1])
    assert nices["heavy"] > nices["fast"]
    assert re.search(r" 0\.0 +0\.0  heavy +passed: 1 tests$", run.summary(), re.MULTILINE)


def test_after_a_failure_in_one_row_the_other_starts_no_stage(clone: Path) -> None:
    run = Run(clone, TABLE, Passed(clone.parent / "passed"))
    run.lines.append(Line("heavy", 0.0, 0.0, "failed", failed=True))
    run.lane(TABLE.stages, {}, is_new=True)
    assert list(run.lines) == [run.lines[0]]


def test_a_run_of_the_same_commit_draws_the_same_examples(clone: Path) -> None:
    (clone / "suite.sh").write_text('echo "$3" >> ../seeds; exec sh ./really.sh "$@"\n')
    (clone / "really.sh").write_text(SUITE)
    _commit(clone)
    for _ in range(2):
        _run(clone)
    (clone / "new.py").touch()
    _commit(clone)
    _run(clone)
    seeds = set((clone.parent / "seeds").read_text().split())
    assert len(seeds) == 2
    assert all(seed.startswith("--hypothesis-seed=") for seed in seeds)


def test_a_night_runs_everything_and_goes_on_after_a_failure(clone: Path) -> None:
    (clone / "fast.broken").write_text("one")
    _commit(clone)
    run = Run(clone, TABLE, Passed(clone.parent / "passed"), is_nightly=True)
    assert run.all() == 1
    assert list(_outcomes(run)) == ["fast", "none", "heavy"]
