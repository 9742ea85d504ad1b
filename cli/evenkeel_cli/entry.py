"""The program `evenkeel`, which says what to install where the packages of the command line are missing."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `evenkeel`."""
    try:
        from evenkeel_cli.main import main as run

        run()
    except ModuleNotFoundError as error:
        sys.exit(
            f"evenkeel: the package {error.name} is missing. Install the command line with: "
            f"pip install 'evenkeel-llm[cli]'"
        )
