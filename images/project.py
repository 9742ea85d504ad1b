"""Reads pyproject.toml in the working directory for the build of an image.

`python3 project.py requirements EXTRA` prints the dependencies without the project itself, so that their layer is reused
until one of them changes. `python3 project.py metadata FOLDER` writes the metadata that an installer would write: name,
version and entry points.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any


def main(command: str, argument: str) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    if command == "requirements":
        sys.stdout.writelines(f"{requirement}\n" for requirement in requirements(project, argument))
    else:
        folder = Path(argument) / f"{project['name']}-{project['version']}.dist-info"
        folder.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (folder / "METADATA").write_text(head)
        (folder / "entry_points.txt").write_text(entry_points(project, Path(argument)))


def requirements(project: dict[str, Any], extra: str) -> list[str]:
    return sorted({*project["dependencies"], *project["optional-dependencies"][extra]})


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
    main(sys.argv[1], sys.argv[2])
