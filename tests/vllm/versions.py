"""Which versions of vLLM fit the plug-in: a table for docs/reference/compatibility.md.

    python -m tests.vllm.versions [--tests] [--newest | VERSION …]

Without versions: all from `OLDEST` on that the package index has; `--newest`: the last of them. The index has no build of the newest
versions for CPUs. So the Python files of the GPU package are laid before the packages of `make vllm`, with the CPU kernels of the version
that is installed there. `source` and `loads` are the check of the plug-in on the imported modules. With `--tests`,
`test_random_events.py` and `test_plugin.py` run with each version that loads, as if it were in `TESTED`, without the tests of refusals.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from evenkeel_contract.render import OFFLINE_ENVIRONMENT
from evenkeel_contract.vllm import COMMON_ENVIRONMENT, CPU_ENVIRONMENT
from evenkeel_vllm import seams

from bench.vllm_engine import VERSION_VARIABLE
from tests.sglang.engine import ROOT
from tests.sglang.versions import Row, options, released, who_orders, write

OLDEST: Final = (0, 32, 0)
HEADING: Final = "| vLLM | source | loads | tests | queue |\n|---|---|---|---|---|\n"
MISFITS: Final = "from evenkeel_vllm import seams; print(len(seams.misfits()), seams.installed())"
AS_IF_TESTED: Final = "from evenkeel_vllm import seams\nseams.TESTED += (seams.installed(),)\n"
"""A `sitecustomize` module, which Python imports at its start."""
TESTS: Final = ("-m", "vllm and not slow", "-k", "not does_not_fit", "tests/vllm/test_random_events.py", "tests/vllm/test_plugin.py")  # fmt: skip


def lay(version: str, environment: Path, folder: Path) -> None:
    """The Python files of a version, the compiled ones of the installed version, and a version that names the CPU."""
    python, wheels = str(environment / "bin/python"), folder / "wheels"
    download = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
    subprocess.run([python, *download, f"vllm=={version}"], check=True)
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as files:
        kept = [name for name in files.namelist() if not name.endswith(".so")]
        files.extractall(folder, [name for name in kept if name.startswith("vllm/")])
    wheel.unlink()
    metadata = folder / f"vllm-{version}+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    )
    where = "import vllm; print(vllm.__path__[0])"
    found = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    for compiled in Path(found.stdout.splitlines()[-1]).glob("*.so"):
        (folder / "vllm" / compiled.name).symlink_to(compiled)
    # Newer versions need it, and the installed one does not.
    extra = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), "orjson"]
    subprocess.run([python, *extra], check=True)
    (folder / "sitecustomize.py").write_text(AS_IF_TESTED)


def checked(version: str, environment: Path, *, with_tests: bool) -> Row:
    """Download one version and try it."""
    queue = who_orders(version, seams.TESTED)
    with tempfile.TemporaryDirectory(prefix="vllm-") as name:
        lay(version, environment, Path(name))
        variables = {**os.environ, **COMMON_ENVIRONMENT, **CPU_ENVIRONMENT, **OFFLINE_ENVIRONMENT}
        found = subprocess.run(
            [str(environment / "bin/python"), "-c", MISFITS],
            env={**variables, "PYTHONPATH": name},
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode:
            return Row(version, "not read", "no", queue=queue)
        misfits, installed = found.stdout.splitlines()[-1].split()
        assert installed == version, "another version is in the way"
        source = "fits" if misfits == "0" else f"{misfits} misfit"
        if not with_tests:
            return Row(version, source, "yes", queue=queue)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *TESTS],
            env={**os.environ, VERSION_VARIABLE: name},
            cwd=ROOT,
            check=False,
        )
        return Row(version, source, "yes", "pass" if done.returncode == 0 else "fail", queue)


def main() -> int:
    """Command line."""
    asked = options()
    environment = Path(os.environ.get("EVENKEEL_VLLM", ROOT / ".venv-vllm"))
    if not (environment / "bin/python").exists():
        sys.exit("the real engine is not installed: make vllm")
    versions = asked.versions or list(released(environment / "bin/python", "vllm", OLDEST))
    rows = (
        checked(version, environment, with_tests=asked.tests)
        for version in (versions[-1:] if asked.newest else versions)
    )
    return write(rows, HEADING, with_tests=asked.tests)


if __name__ == "__main__":
    sys.exit(main())
