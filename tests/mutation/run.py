"""Mutation run over the algorithms: which changes to the code does no test notice?

    python tests/mutation/run.py replica/dlpm.py 'fleet/*.py' ...

mutmut needs a `src` layout, so the sources and their tests are staged in `out/mutation` first. Prints every
survivor as a diff; exits with 1 if one of them is not explained in docs/design/mutation.md. A survivor is
explained there by quoting its changed line in a code block (`- old` / `+ new`), under its file's name.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STAGE = ROOT / "out" / "mutation"
ACCEPTED = ROOT / "docs" / "design" / "mutation.md"
PACKAGE = "evenkeel_fairshare"
OTHERS = {
    "policies": "laboratory/evenkeel_laboratory",
    "traffic": "simulator/evenkeel_simulator",
}
"""Rooms of other packages that are mutated too."""
NEEDED = ("__init__.py", "engine", *OTHERS)
"""What is staged of their packages."""
EVERYTHING = (
    "replica/*.py",
    "fleet/*.py",
    "prefix/*.py",
    "*.py",
    "policies/*.py",
    "traffic/timeline.py",
    "traffic/service_difference.py",
)
TESTS = (
    *("tests/support", "tests/conformance", "tests/property"),
    f"tests/unit/{PACKAGE}",
    *(f"tests/unit/{Path(folder).name}/{room}" for room, folder in OTHERS.items()),
)

CONFIG = """
[tool.mutmut]
source_paths = ["src"]
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


def stage(patterns: list[str], tests_named: str) -> None:
    """Copy what is mutated, and those of the tests named so that import nothing else, be it through tests/support."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(ROOT / "fairshare" / PACKAGE, STAGE / "src" / PACKAGE)
    for folder in OTHERS.values():
        for source in (ROOT / folder / part for part in NEEDED):
            target = STAGE / "src" / Path(folder).name / source.name
            if source.is_dir():
                shutil.copytree(source, target)
            elif source.exists():
                target.parent.mkdir()
                shutil.copyfile(source, target)
    foreign = r"evenkeel_(?!fairshare|laboratory\.policies|simulator\.traffic)"
    support = (ROOT / "tests" / "support").glob("*.py")
    beyond = [
        path.stem
        for path in support
        if re.search(rf"import {foreign}|from {foreign}", path.read_text())
    ]
    modules = "|".join((foreign, *(rf"tests\.support\.{name}\b" for name in beyond)))
    others = re.compile(rf"^\s*(from|import) ({modules})", re.MULTILINE)
    for folder in TESTS:
        for path in (ROOT / folder).rglob("*.py"):
            is_named = re.search(tests_named, str(path.relative_to(ROOT))) or "support" in folder
            if is_named and not others.search(path.read_text()):
                copy = STAGE / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
    packages = {room: Path(folder).name for room, folder in OTHERS.items()}
    only = ", ".join(
        f'"src/{packages.get(pattern.partition("/")[0], PACKAGE)}/{pattern}"'
        for pattern in patterns
    )
    tests = ", ".join(f'"{folder}"' for folder in TESTS[1:] if (STAGE / folder).exists())
    shutil.copyfile(ROOT / "tests" / "conftest.py", STAGE / "tests" / "conftest.py")
    (STAGE / "pyproject.toml").write_text(CONFIG.format(only=only, tests=tests))


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
