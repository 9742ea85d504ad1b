"""What can keep a fleet from running. One sentence for a person each; the command line adds no traceback.

FleetError
├── AlreadyRunning   another supervisor holds this service
├── PortTaken        a port of the router is in use
└── NotReady         a process did not get ready in time, or ended before
"""

from __future__ import annotations


class FleetError(Exception):
    """The fleet cannot run as asked; the message says why and what to do."""


class AlreadyRunning(FleetError):
    """Another supervisor runs the same service from the same folder."""


class PortTaken(FleetError):
    """A port of the router is in use."""


class NotReady(FleetError):
    """A process did not get ready in time, or ended before."""
