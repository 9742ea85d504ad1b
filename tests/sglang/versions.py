"""Which versions of SGLang fit the plug-in: a table for docs/reference/compatibility.md.

    python -m tests.sglang.versions [--tests] [VERSION …]

Without versions: all from `OLDEST` on that the package index has. Each wheel is laid into a temporary folder without its
dependencies, and checked by its source. Then the packages of `make sglang` are tried as its dependencies: `loads` says whether the
same check passes on the imported modules. With `--tests`, `tests/sglang/test_plugin.py` runs with each version that loads, as if the
version were in `TESTED`: without its slow test, and without those of other versions and of a misfit. A dash in the table means
that this was not done. Rows of earlier runs stay, unless a version is run again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenkeel_contract.render import CPU_ENVIRONMENT
from evenkeel_sglang import sources

from tests.sglang.engine import ROOT, engine_environment

OLDEST: Final = (0, 5, 16)
PAGE: Final = ROOT / "docs/reference/compatibility.md"
HEADING: Final = "| SGLang | source | loads | tests |\n|---|---|---|---|\n"
NOT_DONE: Final = "–"
PARTS: Final = ("plugins/sglang", "plugins/common", "contract", "fairshare")
AS_IF_TESTED: Final = "from evenkeel_sglang import seams\nseams.TESTED += (seams.installed(),)\n"
"""A `sitecustomize` module, which Python imports at its start. A version that is not in `TESTED` would schedule without the policy."""
TESTS: Final = ("-m", "sglang and not slow", "-k", "not older_supported and not refuses and not 0.5.21", "tests/sglang/test_plugin.py")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One version."""

    version: str
    source: str
    """`fits`, or the number of places that do not."""
    loads: str
    tests: str = NOT_DONE

    def __str__(self) -> str:
        return f"| {self.version} | {self.source} | {self.loads} | {self.tests} |\n"


def released(python: Path) -> Iterator[str]:
    """Final versions of the package index from the oldest on, oldest first."""
    command = [str(python), "-m", "pip", "index", "versions", "sglang"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"\b\d+\.\d+\.\d+\b(?!\.post)", text.partition("Available versions:")[2])
    for numbers in sorted({tuple(map(int, version.split("."))) for version in listed}):
        if numbers >= OLDEST:
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
        if loads == "no" or not with_tests:
            return Row(version, source, loads)
        (folder / "sitecustomize.py").write_text(AS_IF_TESTED)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *TESTS],
            env={**os.environ, "EVENKEEL_SGLANG_VERSION": name},
            cwd=ROOT,
            check=False,
        )
        return Row(version, source, loads, "pass" if done.returncode == 0 else "fail")


def known(page: str) -> Mapping[str, Row]:
    """The rows of a page."""
    table = page.partition(HEADING)[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([\d.]+) \| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)
    return {version: Row(version, *cells) for version, *cells in rows}


def with_rows(page: str, rows: Mapping[str, Row]) -> str:
    """The page with these rows, oldest first."""
    before, _, rest = page.partition(HEADING)
    _, _, after = rest.partition("\n\n")
    ordered = sorted(rows.values(), key=lambda row: tuple(map(int, row.version.split("."))))
    return before + HEADING + "".join(map(str, ordered)) + (f"\n{after}" if after else "")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*")
    parser.add_argument("--tests", action="store_true")
    options = parser.parse_args()
    environment = engine_environment()
    if environment is None:
        sys.exit("the real engine is not installed: make sglang")
    python = environment / "bin/python"
    rows = dict(known(PAGE.read_text()))
    for version in options.versions or released(python):
        row = checked(version, python, with_tests=options.tests)
        if not options.tests and version in rows:  # keep what the tests said
            row = Row(version, row.source, row.loads, rows[version].tests)
        rows[version] = row
        sys.stdout.write(str(row))
        PAGE.write_text(with_rows(PAGE.read_text(), rows))  # a run takes long, and may be stopped
    return 0


if __name__ == "__main__":
    sys.exit(main())
