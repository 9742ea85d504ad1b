"""Creates the environment of an engine: a part that all checkouts share, and a small one with the plug-in of this checkout.

    python shared_environment.py sglang|vllm FOLDER

The shared part holds the engine's packages, their bytecode and the tiny model. It takes minutes to make and 6 GB, and is kept by a hash of what it is
made from in EVENKEEL_ENGINES, or else in ~/.cache/evenkeel/engines. FOLDER is a virtual environment that finds these packages, with this
checkout installed as editable. Needs nothing but Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
SGLANG: Final = ROOT / "plugins/sglang/cpu"
VLLM: Final = ROOT / "plugins/vllm/cpu"
OLDER_SGLANG: Final = "0.5.21"
"""The version that some tests lay beside the installed one."""
MADE_FROM: Final = {
    "sglang": (SGLANG / "requirements.txt", SGLANG / "engine.txt", SGLANG / "sgl_kernel_stub"),
    "vllm": (VLLM / "requirements.txt", VLLM / "vllm_version"),
}


def main(engine: str, folder: Path) -> None:
    shared = shared_folder() / f"{engine}-{fingerprint(engine)}"
    with locked(shared.with_suffix(".lock")):
        if not (shared / "complete").exists():
            make_shared(engine, shared)
            (shared / "complete").touch()
    make_own(folder, shared)


def shared_folder() -> Path:
    """The folder of all shared parts."""
    named = os.environ.get("EVENKEEL_ENGINES")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else caches / "evenkeel" / "engines"


def fingerprint(engine: str) -> str:
    """A hash of what the shared part is made from: the Python, this recipe, and the lists of packages."""
    found = hashlib.sha256(f"{sys.version} {sys.base_prefix}".encode())
    for source in (Path(__file__), SGLANG / "tiny_model.py", *MADE_FROM[engine]):
        for file in sources(source) if source.is_dir() else (source,):
            found.update(f"{file.name}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def sources(folder: Path) -> list[Path]:
    """The files of a small package, without those that its build leaves there."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in {".py", ".toml"} and "build" not in file.relative_to(folder).parts
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process makes the shared part; others that want it wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_shared(engine: str, folder: Path) -> None:
    """Install the engine's packages into `folder`. What an attempt left there that was cut short is removed."""
    print(f"making {folder} (once)", flush=True)  # noqa: T201
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv>=0.5,<1")
    # uv, because pip takes ten minutes.
    install = (folder / "bin/uv", "pip", "install", "--quiet", "--python", python)
    compiled = [folder / "lib"]
    if engine == "sglang":
        run(*install, "-r", SGLANG / "requirements.txt")
        run(*install, "--no-deps", "-r", SGLANG / "engine.txt", SGLANG / "sgl_kernel_stub")
        older = folder / f"sglang-{OLDER_SGLANG}"
        run(*install, "--no-deps", "--target", older, f"sglang=={OLDER_SGLANG}")
        compiled.append(older)
    else:
        run(*install, "--no-deps", "-r", VLLM / "requirements.txt", VLLM / "vllm_version")
    # Three processes of each engine import all of it, and take twice the time without bytecode. Some files are templates that do
    # not compile.
    compile_all = (python, "-m", "compileall", "-qq", "-j", "0", *compiled)
    subprocess.run([*map(str, compile_all)], check=False)
    run(python, SGLANG / "tiny_model.py", folder / "model")


def make_own(folder: Path, shared: Path) -> None:
    """A virtual environment with this checkout, whose Python finds the shared packages too."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    run(
        *(shared / "bin/uv", "pip", "install", "--quiet", "--python", python),
        *("--no-deps", "--editable", ROOT),
    )
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    line = f"import site; site.addsitedir({str(shared / packages)!r})\n"
    (folder / packages / "shared.pth").write_text(line)
    for name in ("model", f"sglang-{OLDER_SGLANG}"):
        if (shared / name).exists():
            (folder / name).symlink_to(shared / name)
    (folder / "shared").symlink_to(shared)


def run(*command: object) -> None:
    subprocess.run([*map(str, command)], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in MADE_FROM:
        sys.exit(f"usage: python shared_environment.py {'|'.join(MADE_FROM)} FOLDER")
    main(sys.argv[1], Path(sys.argv[2]).resolve())
