"""The program `evenkeel`, which says what to install where the packages of the command line are missing."""

from __future__ import annotations

import io
import sys
from typing import Final

INTERRUPTED: Final = 130
"""`ExitCode.INTERRUPTED`, before anything is imported."""


def main() -> None:
    """Entry point of `evenkeel`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of Latin-1 has no arrow
    try:
        from evenkeel_cli.main import main as run

        run()
    except ModuleNotFoundError as error:
        sys.exit(
            f"evenkeel: the package {error.name} is missing. Install the command line with: "
            f"pip install 'evenkeel-llm[cli]'"
        )
    except KeyboardInterrupt:  # while the packages of the command are imported
        sys.exit(INTERRUPTED)
