"""Why a fleet cannot run. The command line prints the message, which is one sentence, without a traceback."""

from __future__ import annotations


class FleetError(Exception):
    """The fleet cannot run as requested; the message gives the reason and the remedy."""


class Superseded(FleetError):
    """The file changed again before the new replicas were ready; none of them runs."""
