"""`python3 requirements.py EXTRA…`: what an image installs, from pyproject.toml in the working directory.

Dependencies alone, without the project: so the layer that holds them lasts until one of them changes.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(extras: list[str]) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    sys.stdout.writelines(f"{requirement}\n" for requirement in sorted(set(wanted)))


if __name__ == "__main__":
    main(sys.argv[1:])
