"""Why a fleet cannot run. Each message is one sentence; the command line prints it without a traceback.

FleetError
├── AlreadyRunning   another `evenkeel up` runs the same service
├── PortTaken        a port of the router is in use
├── NotEnoughMemory  the file asks for more processes than fit on this machine
├── NotReady         a process was not ready in time, or ended before
└── Superseded       the file changed again before the new replicas were ready
"""

from __future__ import annotations


class FleetError(Exception):
    """The fleet cannot run as requested; the message gives the reason and the remedy."""


class AlreadyRunning(FleetError):
    """Another `evenkeel up` runs the same service from the same folder."""


class PortTaken(FleetError):
    """A port of the router is in use."""


class NotEnoughMemory(FleetError):
    """The file asks for more processes than fit into the memory of this machine."""


class NotReady(FleetError):
    """A process was not ready in time, or ended before."""


class Superseded(FleetError):
    """The file changed again before the new replicas were ready; none of them runs."""
