"""Which versions of SGLang fit the plug-in: a table for docs/reference/compatibility.md.

    python -m tests.sglang.versions [--tests] [--newest | VERSION …]

Without versions: all from `OLDEST` on that the package index has; `--newest`: the last of them. Each wheel is laid into a temporary folder without its
dependencies, and checked by its source. Then the packages of `make sglang` are tried as its dependencies: `loads` says whether the
same check passes on the imported modules. With `--tests`, `tests/sglang/test_plugin.py` runs with each version that loads, as if the
version were in `TESTED`: without its slow test, and without those of other versions and of a misfit. Then `test_random_events.py` runs with it.
A dash in the table means that this was not done. Rows of earlier runs stay, unless a version is run again. Exit code 1: a place does not
fit, or a test fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from evenkeel_contract.render import CPU_ENVIRONMENT
from evenkeel_sglang import seams, sources

from tests.sglang.engine import ROOT, engine_environment

OLDEST: Final = (0, 5, 16)
PAGE: Final = ROOT / "docs/reference/compatibility.md"
HEADING: Final = "| SGLang | source | loads | tests | queue |\n|---|---|---|---|---|\n"
NOT_DONE: Final = "–"
PARTS: Final = ("plugins/sglang", "plugins/common", "contract", "fairshare")
AS_IF_TESTED: Final = "from evenkeel_sglang import seams\nseams.TESTED += (seams.installed(),)\n"
"""A `sitecustomize` module, which Python imports at its start. A version that is not in `TESTED` would schedule without the policy."""
TESTS: Final = (
    *("-m", "sglang and not slow", "-k", "not older_supported and not refuses and not 0.5.21"),
    *("tests/sglang/test_plugin.py", "tests/sglang/test_random_events.py"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One version."""

    version: str
    source: str
    """`fits`, or the number of places that do not."""
    loads: str
    tests: str = NOT_DONE
    queue: str = "routers"
    """Who orders it: the plug-in in tested versions, else the routers' gate."""

    def __str__(self) -> str:
        cells = (self.version, self.source, self.loads, self.tests, self.queue)
        return f"| {' | '.join(cells)} |\n"

    @property
    def is_bad(self) -> bool:
        """A place does not fit, the modules cannot be imported, or a test fails."""
        return (self.source, self.loads) != ("fits", "yes") or self.tests == "fail"


def who_orders(version: str, tested: Collection[str]) -> str:
    """The last cell of a row."""
    return "plug-in" if version in tested else "routers"


def released(python: Path, package: str, oldest: tuple[int, ...]) -> Iterator[str]:
    """Final versions of the package index from the oldest on, oldest first."""
    command = [str(python), "-m", "pip", "index", "versions", package]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"\b\d+\.\d+\.\d+\b(?!\.post)", text.partition("Available versions:")[2])
    for numbers in sorted({tuple(map(int, version.split("."))) for version in listed}):
        if numbers >= oldest:
            yield ".".join(map(str, numbers))


def checked(version: str, python: Path, *, with_tests: bool) -> Row:
    """Download one version and try it."""
    with tempfile.TemporaryDirectory(prefix="sglang-") as name:
        folder = Path(name)
        install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", name]
        subprocess.run([str(python), *install, f"sglang=={version}"], check=True)
        misfits = sum(bool(why) for _, why in sources.places(folder))
        source = f"{misfits} misfit" if misfits else "fits"
        path = os.pathsep.join([name, *(str(ROOT / part) for part in PARTS)])
        environment = {**os.environ, **CPU_ENVIRONMENT, "PYTHONPATH": path}
        command = [str(python), "-m", "evenkeel_sglang.check"]
        found = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        loads = "yes" if found.returncode in (0, 2) else "no"
        queue = who_orders(version, seams.TESTED)
        if loads == "no" or not with_tests:
            return Row(version, source, loads, queue=queue)
        (folder / "sitecustomize.py").write_text(AS_IF_TESTED)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *TESTS],
            env={**os.environ, "EVENKEEL_SGLANG_VERSION": name},
            cwd=ROOT,
            check=False,
        )
        return Row(version, source, loads, "pass" if done.returncode == 0 else "fail", queue)


def known(page: str, heading: str) -> Mapping[str, Row]:
    """The rows of a table of a page."""
    table = page.partition(heading)[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([\d.]+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)
    return {version: Row(version, *cells) for version, *cells in rows}


def with_rows(page: str, rows: Mapping[str, Row], heading: str) -> str:
    """The page with these rows in a table, oldest first."""
    before, _, rest = page.partition(heading)
    _, _, after = rest.partition("\n\n")
    ordered = sorted(rows.values(), key=lambda row: tuple(map(int, row.version.split("."))))
    return before + heading + "".join(map(str, ordered)) + (f"\n{after}" if after else "")


def options() -> argparse.Namespace:
    """The command line, also of `tests.vllm.versions`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("--newest", action="store_true")
    return parser.parse_args()


def write(rows: Iterable[Row], heading: str, *, with_tests: bool) -> int:
    """Write rows to the page one by one: a run takes long, and may be stopped. Returns the exit code."""
    is_bad = False
    for row in rows:
        table = dict(known(PAGE.read_text(), heading))
        if not with_tests and row.version in table:  # keep what the tests said
            row = replace(row, tests=table[row.version].tests)
        is_bad |= row.is_bad
        sys.stdout.write(str(row))
        PAGE.write_text(with_rows(PAGE.read_text(), {**table, row.version: row}, heading))
    return int(is_bad)


def main() -> int:
    """Command line."""
    asked = options()
    environment = engine_environment()
    if environment is None:
        sys.exit("the real engine is not installed: make sglang")
    python = environment / "bin/python"
    versions = asked.versions or list(released(python, "sglang", OLDEST))
    rows = (
        checked(version, python, with_tests=asked.tests)
        for version in (versions[-1:] if asked.newest else versions)
    )
    return write(rows, HEADING, with_tests=asked.tests)


if __name__ == "__main__":
    sys.exit(main())
