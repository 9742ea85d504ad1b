"""What an image needs to know of pyproject.toml in the working directory.

`python3 project.py requirements EXTRA` prints what an image installs: dependencies alone, without the project, so
that the layer which holds them lasts until one of them changes. `python3 project.py metadata FOLDER` writes what an
installer would: name and version, which programs ask for, and by which entry points others find the packages in it.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any


def main(verb: str, argument: str) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    if verb == "requirements":
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
    """Those whose package is there."""
    lines = []
    for group, members in project["entry-points"].items():
        lines.append(f"[{group}]")
        for name, target in members.items():
            if (folder / target.partition(".")[0]).exists():
                lines.append(f"{name} = {target}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
