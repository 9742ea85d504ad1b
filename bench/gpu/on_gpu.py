"""Prepares a machine without network and runs steps there: `python3 bench/gpu/on_gpu.py STEP ... --out FOLDER [--keep]`.

Unpacks the bundle (`bench.gpu.bundle`) once, checks for the compilers that kernels need, and becomes `bench.gpu.run` with the same arguments.
Only the standard library is imported: nothing else is there before the bundle is unpacked. With `--cpu ENVIRONMENT` the bundle is unpacked too,
but the engine and the harness run from environments of this machine.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = (
    *("plugins/sglang", "plugins/common", "contract", "fairshare", "simulator", "laboratory"),
    *("router", "cli", "kube"),
)
_PROGRAMS: Final = ("nvidia-smi", "nvcc", "ninja", "c++", "xz")
_DONE: Final = ".unpacked"
CALL_S: Final = 560.0
"""Seconds of a call, what this program takes included."""


def unpack(bundle: Path, site: Path) -> bool:
    """Unpack the site unless that was done; whether it had to be. A folder that was not finished is replaced."""
    if (site / _DONE).exists():
        return False
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    if shutil.which("tar") and shutil.which("xz"):
        subprocess.run(["tar", "-C", str(site), "-I", "xz -T0", "-xf", str(bundle)], check=True)
    else:
        with tarfile.open(bundle) as archive:
            archive.extractall(site, filter="data")
    (site / _DONE).touch()
    return True


def variables(site: Path) -> dict[str, str]:
    """Variables of the harness on a machine where only the site and this checkout have packages."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    path = [str(site), str(ROOT), *(str(ROOT / package) for package in _PACKAGES)]
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "CUDA_HOME": os.environ.get("CUDA_HOME", str(Path(nvcc).resolve().parents[1])),
    }


def main(arguments: Sequence[str]) -> None:
    """The command. Does not return."""
    parser = argparse.ArgumentParser(prog="on_gpu.py", add_help=False)
    parser.add_argument("--bundle", type=Path, default=ROOT / ".gpu")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-gpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cpu", type=Path)
    parser.add_argument("--limit", type=float, default=CALL_S)
    options, _ = parser.parse_known_args(arguments)
    began_s = time.monotonic()
    site = options.work / "site"
    fresh = unpack(options.bundle / "site.tar.xz", site)
    unpacked_s = time.monotonic() - began_s
    environment = dict(os.environ)
    if options.cpu is None:
        environment.update(variables(site))
        if fresh:
            compileall.compile_dir(site, quiet=2, workers=0, rx=re.compile("/fallback/"))
    cuda = Path(environment.get("CUDA_HOME", "/usr/local/cuda"))
    record = {
        "kind": "machine",
        "fresh": fresh,
        "unpack_s": round(unpacked_s, 1),
        "prepare_s": round(time.monotonic() - began_s, 1),
        "missing": [
            *(program for program in _PROGRAMS if shutil.which(program) is None),
            *(
                str(cuda / "lib64/libcudart.so")
                for _ in [0]
                if not (cuda / "lib64/libcudart.so").exists()
            ),
        ],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record), flush=True)
    left_s = options.limit - (time.monotonic() - began_s)
    passed = [
        *arguments,
        f"--work={options.work}",
        f"--bundle={options.bundle}",
        f"--limit={left_s}",
    ]
    os.chdir(ROOT)
    os.execve(sys.executable, [sys.executable, "-m", "bench.gpu.run", *passed], environment)


if __name__ == "__main__":
    main(sys.argv[1:])
