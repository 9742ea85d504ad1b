"""What an image needs to know of pyproject.toml in the working directory.

`python3 project.py requirements EXTRA` prints what an image installs: dependencies alone, without the project, so
that the layer which holds them lasts until one of them changes. `python3 project.py metadata FOLDER` writes name
and version there, as an installer would: programs ask for their version.
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


def requirements(project: dict[str, Any], extra: str) -> list[str]:
    return sorted({*project["dependencies"], *project["optional-dependencies"][extra]})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
