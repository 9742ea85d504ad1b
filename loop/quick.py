"""Run the tests that are nearest to what changed since the merge base with main, for most of a minute (`make quick`).

Near is counted in imports: a test that imports a changed module comes before one that imports it through another. A file
that is not Python's is near to the tests whose text names it, or its folder. A test that starts a program by its command
imports nothing of it, and does not count as near. What is left out is said.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import grimp

from loop.deadline import TIME_S as TIME
from loop.stages import ROOT, git_lines

FILES = 80
"""Test files of one run, the nearest: both workers import each of them, which takes a tenth of a second."""
TIME_S = 30
"""No test starts later than this after the collection, which takes ten seconds at most on two idle cores."""
HEAVY = ("tests/sglang/", "tests/vllm/", "tests/console/", "tests/clients/", "tests/peers/")
"""They need an environment of their own."""
MARKERS = "not slow and not sglang and not vllm and not console"
TESTS_AND_PROGRAMS = (
    "tests",
    "bench",
    "chaos",
    "crds",
    "docs",
    "e2e",
    "images",
    "loop",
    "monitoring",
    "release",
)


def packages(root: Path) -> dict[str, Path]:
    """Import name → the folder that it is in. The product's packages have folders of their own; the rest is at the root."""
    inits = [
        path for depth in ("*", "*/*") for path in root.glob(f"{depth}/evenkeel_*/__init__.py")
    ]
    return {path.parent.name: path.parents[1] for path in inits} | dict.fromkeys(
        TESTS_AND_PROGRAMS, root
    )


def base_of(root: Path) -> str:
    """The merge base with main, or the parent of the newest commit on main itself."""
    for name in ("origin/main", "main"):
        base = _git(root, "merge-base", "HEAD", name)
        if base and base != _git(root, "rev-parse", "HEAD"):
            return base
    return _git(root, "rev-parse", "HEAD~1") or _git(root, "rev-parse", "HEAD")


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, check=False, capture_output=True, text=True
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def changed_since(root: Path, base: str) -> list[str]:
    """Files that differ from a commit, be they committed, uncommitted or new."""
    lines = [
        *git_lines(root, "diff", "--name-only", "-z", base),
        *git_lines(root, "ls-files", "-z", "--others", "--exclude-standard"),
    ]
    return sorted(set(lines))


class Tree:
    """The modules of a tree, and who imports whom."""

    def __init__(self, root: Path) -> None:
        self._root, self._packages = root, packages(root)
        sys.path[:0] = dict.fromkeys(map(str, self._packages.values()))
        cache = str(root / ".import_linter_cache")
        self._graph = grimp.build_graph(*self._packages, cache_dir=cache)
        self.modules = {path: name for name in self._graph.modules if (path := self._path_of(name))}
        self._paths = {name: path for path, name in self.modules.items()}

    def _path_of(self, module: str) -> str | None:
        """The file of a module; a folder without `__init__.py` has none."""
        at = self._packages[module.partition(".")[0]] / module.replace(".", "/")
        for file in (at.with_name(f"{at.name}.py"), at / "__init__.py"):
            if file.exists():
                return str(file.relative_to(self._root))
        return None

    def near(self, changed: Iterable[str]) -> dict[str, int]:
        """Test file → imports between it and what changed, the nearest first."""
        distances: dict[str, int] = {}
        edge = set()
        for path in changed:
            edge |= self._begins(path)
        for distance in range(len(self.modules)):
            edge -= distances.keys()
            if not edge:
                break
            distances |= dict.fromkeys(edge, distance)
            edge = {
                one for name in edge for one in self._graph.find_modules_that_directly_import(name)
            }
        tests = {
            self._paths[name]: distance
            for name, distance in distances.items()
            if name in self._paths
        }
        return dict(sorted(
            ((path, distance) for path, distance in tests.items() if is_test(path)),
            key=lambda one: (one[1], "/unit/" not in one[0], one[0]),
        ))  # fmt: skip

    def _begins(self, path: str) -> set[str]:
        """The modules that a changed file is, configures or has its name in."""
        if Path(path).name == "conftest.py":
            folder = str(Path(path).parent)
            return {name for file, name in self.modules.items() if file.startswith(f"{folder}/")}
        return {self.modules[path]} if path in self.modules else self._that_name(path)

    def _that_name(self, path: str) -> set[str]:
        """Modules whose text has the name of a file, or else that of the nearest folder around it that a text has."""
        folders = [str(folder) for folder in Path(path).parents][:-1]
        texts = {module: (self._root / file).read_text() for file, module in self.modules.items()}
        for words in ((Path(path).name,), *((f'"{one}"', f"{one}/") for one in folders)):
            found = {
                module for module, text in texts.items() if any(word in text for word in words)
            }
            if found:
                return found
        return set()


def is_test(path: str) -> bool:
    """Whether a file has fast tests that need no environment of their own."""
    return (
        path.startswith("tests/")
        and Path(path).name.startswith("test_")
        and not path.startswith(HEAVY)
    )


def chosen(tests: Mapping[str, int]) -> Sequence[str]:
    """The nearest test files, as many as a minute has time for; prints what is left out."""
    near, far = list(tests)[:FILES], list(tests)[FILES:]
    for distance in sorted({tests[path] for path in near}):
        files = [path for path in near if tests[path] == distance]
        print(f"  {len(files)} test files at a distance of {distance} imports")
    if far:
        print(
            f"  left out: {len(far)} test files further away, from {far[0]} on (make test runs them)"
        )
    return near


def main() -> int:
    base = base_of(ROOT)
    changed = changed_since(ROOT, base)
    print(f"{len(changed)} files changed since {base[:8]}")
    files = chosen(Tree(ROOT).near(changed))
    if not files:
        print("no test imports or names them")
        return 0
    environment = os.environ | {"HYPOTHESIS_PROFILE": "quick", TIME: str(TIME_S)}
    command = [
        "pytest",
        "-q",
        "-p",
        "loop.deadline",
        "-n",
        "2",
        "--dist",
        "load",
        "--maxschedchunk",
        "1",
        "-m",
        MARKERS,
    ]
    status = subprocess.run(
        [sys.executable, "-m", *command, *files], cwd=ROOT, env=environment, check=False
    ).returncode
    return 0 if status == 5 else status  # 5: all tests of these files are slow ones


if __name__ == "__main__":
    sys.exit(main())
