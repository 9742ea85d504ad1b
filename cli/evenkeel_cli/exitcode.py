"""Exit codes, the same in all commands (docs/reference/command-line.md)."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit code of `evenkeel` means for a script."""

    OK = 0
    """The command succeeded. `up` and the live view of `top` also end with it after Ctrl-C."""
    FAILED = 1
    """The input is valid, but the command failed, or the fleet is not as it should be."""
    INVALID = 2
    """An option, an argument or a file is invalid. Nothing was started."""
    INTERRUPTED = 130
    """Ctrl-C ended the command before its end."""
