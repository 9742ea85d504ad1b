"""Reads pyproject.toml in the working directory for the build of an image.

`python3 project.py requirements EXTRA…` prints the dependencies without the project itself, so that their layer is reused
until one of them changes. `python3 project.py metadata FOLDER` writes the metadata that an installer would write: name,
version and entry points. `python3 project.py platform ARCHITECTURE` prints the options by which pip installs for it.
"""

from __future__ import annotations

import platform
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GLIBC = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 37)))
"""Tags of wheels that run on Debian 12, whose glibc is 2.36. pip does not derive them from each other."""


def main(command: str, *arguments: str) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    if command == "requirements":
        sys.stdout.writelines(
            f"{requirement}\n" for requirement in requirements(project, arguments)
        )
    elif command == "platform":
        sys.stdout.write(" ".join(platform_options(arguments[0])) + "\n")
    else:
        site = Path(arguments[0])
        name = project["name"].replace("-", "_")
        folder = site / f"{name}-{project['version']}.dist-info"
        folder.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (folder / "METADATA").write_text(head)
        (folder / "entry_points.txt").write_text(entry_points(project, site))


def requirements(project: dict[str, Any], extras: Iterable[str]) -> list[str]:
    optional = project["optional-dependencies"]
    return sorted({*project["dependencies"], *(one for extra in extras for one in optional[extra])})


def platform_options(architecture: str) -> list[str]:
    """The options of pip for another architecture (`arm64`, as images call it); none for that of this machine."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(architecture, architecture)
    if machine in ("", platform.machine()):
        return []
    tags = [f"--platform={glibc}_{machine}" for glibc in GLIBC]
    return ["--only-binary=:all:", *tags]


def entry_points(project: dict[str, Any], folder: Path) -> str:
    """The entry points of the packages in `folder`."""
    lines = []
    for group, members in project["entry-points"].items():
        lines.append(f"[{group}]")
        for name, target in members.items():
            if (folder / target.partition(".")[0]).exists():
                lines.append(f"{name} = {target}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])
