"""Why a release cannot be built, published or trusted."""

from __future__ import annotations


class ReleaseError(Exception):
    """The message names the cause and the remedy; the command line prints it without a traceback."""
