"""Mutation run: which changes to the code does no test notice?

    python tests/mutation/run.py replica/dlpm.py 'fleet/*.py' ...
    python tests/mutation/run.py evenkeel_operator/autoscaler.py --tests 'autoscaler|activation'

A pattern names files of the algorithms (`fairshare`, and `ROOMS`), or begins with the name of a package.
mutmut needs a `src` layout, so the packages and the tests are staged in `out/mutation` first. Prints every survivor as a diff;
exits with 1 if one of them is not explained in docs/design/mutation.md. A survivor is explained there by quoting its changed
line in a code block (`- old` / `+ new`), under its file's name.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGE = ROOT / "out" / "mutation"
ACCEPTED = ROOT / "docs" / "design" / "mutation.md"
ALGORITHMS = "evenkeel_fairshare"
ROOMS = {"policies": "evenkeel_laboratory", "traffic": "evenkeel_simulator"}
"""Rooms of other packages that are algorithms too."""
EVERYTHING = (
    "replica/*.py",
    "fleet/*.py",
    "prefix/*.py",
    "*.py",
    "policies/*.py",
    "traffic/timeline.py",
    "traffic/service_difference.py",
)
TESTS_OF_ALGORITHMS = (
    *("tests/conformance", "tests/property"),
    *(f"tests/unit/{ALGORITHMS}", *(f"tests/unit/{name}/{room}" for room, name in ROOMS.items())),
)
DATA = ("crds", "examples")
"""Folders that tests of the other packages read."""

CONFIG = """
[tool.mutmut]
source_paths = ["src"]
also_copy = [{data}]
only_mutate = [{only}]
pytest_add_cli_args = ["--import-mode=importlib", "-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = [{tests}]
timeout_multiplier = 1.0
timeout_constant = 10.0
use_git_change_detection = false

[tool.pytest.ini_options]
pythonpath = ["src", "."]
asyncio_mode = "auto"
"""


def path_of(pattern: str) -> str:
    """The staged files of a pattern."""
    if pattern.startswith("evenkeel_"):
        return f"src/{pattern}"
    return f"src/{ROOMS.get(pattern.split('/')[0], ALGORITHMS)}/{pattern}"


def stage(patterns: list[str], tests_named: str) -> None:
    """Copy the packages, the tests of what is mutated, and what these read."""
    shutil.rmtree(STAGE, ignore_errors=True)
    for place in ("[a-z]*", "plugins/*"):
        for file in ROOT.glob(f"{place}/evenkeel_*/__init__.py"):
            shutil.copytree(file.parent, STAGE / "src" / file.parent.name)
    for folder in (*DATA, "tests/support"):
        shutil.copytree(ROOT / folder, STAGE / folder)
    packages = {pattern.split("/")[0] for pattern in patterns if pattern.startswith("evenkeel_")}
    tests = [f"tests/unit/{package}" for package in packages]
    if not all(pattern.startswith("evenkeel_") for pattern in patterns):
        tests += TESTS_OF_ALGORITHMS
    for folder in tests:
        for path in (ROOT / folder).rglob("*.py"):
            is_test = path.name.startswith("test_")
            if is_test and folder in TESTS_OF_ALGORITHMS and imports_others(path):
                continue
            if not is_test or re.search(tests_named, str(path.relative_to(ROOT))):
                copy = STAGE / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
    shutil.copyfile(ROOT / "tests" / "conftest.py", STAGE / "tests" / "conftest.py")
    config = CONFIG.format(
        data=quoted(DATA),
        only=quoted(map(path_of, patterns)),
        tests=quoted(folder for folder in tests if (STAGE / folder).exists()),
    )
    (STAGE / "pyproject.toml").write_text(config)


def imports_others(test: Path) -> bool:
    """Whether a test of the algorithms imports other packages, be it through tests/support: most of these are slow."""
    others = r"^\s*(from|import) evenkeel_(?!fairshare|laboratory\.policies|simulator\.traffic)"
    text = test.read_text()
    support = re.findall(r"tests\.support\.(\w+)", text)
    texts = [text, *((ROOT / "tests/support" / f"{name}.py").read_text() for name in support)]
    return any(re.search(others, one, re.MULTILINE) for one in texts)


def quoted(names: Iterable[str]) -> str:
    """The items of a list in TOML."""
    return ", ".join(f'"{name}"' for name in names)


def mutmut(*arguments: str) -> str:
    """Run mutmut in the stage, with this interpreter; its output."""
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments],
        cwd=STAGE,
        env=os.environ | {"HYPOTHESIS_PROFILE": "mutation"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout)
    return done.stdout


def changed_lines(diff: str) -> str:
    """The `-` and `+` lines of a diff, without indentation: what identifies a mutant in mutation.md."""
    lines = (line for line in diff.splitlines() if re.match(r"[-+](?![-+])", line))
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines)


def main() -> None:
    """Stage, run, list the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("patterns", nargs="*", default=list(EVERYTHING))
    parser.add_argument("--tests", default="", help="only tests whose path this expression matches")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    stage(arguments.patterns, arguments.tests)
    mutmut("run", "--max-children", str(arguments.jobs))
    accepted = ACCEPTED.read_text() if ACCEPTED.exists() else ""
    lines = [line.strip() for line in mutmut("results", "--all", "true").splitlines()]
    results = [tuple(line.rsplit(": ", 1)) for line in lines if ": " in line]
    survivors = [name for name, outcome in results if outcome not in ("killed", "timeout")]
    unexplained = 0
    for name in survivors:
        diff = mutmut("show", name)
        known = changed_lines(diff) in accepted
        unexplained += not known
        sys.stdout.write(f"{name} ({'explained' if known else 'UNEXPLAINED'})\n{diff}\n")
    sys.stdout.write(
        f"{len(results)} mutants, {len(survivors)} survived, {unexplained} of them unexplained\n"
    )
    sys.exit(unexplained > 0)


if __name__ == "__main__":
    main()
