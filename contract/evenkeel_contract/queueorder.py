"""How and where the waiting requests of a replica are ordered: names that spec, RouterConfig and engine settings share."""

from __future__ import annotations

from enum import Enum


class ReplicaPolicyName(Enum):
    """How a replica's waiting requests are ordered (design R1)."""

    DLPM = "DLPM"
    VTC = "VTC"
    VTC_PREDICT = "VTCPredict"  # VTC that charges predicted output at admission
    DRR = "DRR"  # deficit round robin: one quantum each turn, in order of joining
    LCF = "LCF"  # least counter first, for comparisons: a new client is owed all earlier service
    LPM = "LPM"
    HRRN = "HRRN"  # highest response ratio next: work since the arrival over uncached input
    FCFS = "FCFS"


class Rejoin(Enum):
    """Deficit of a client that returns to a replica after being idle (design R4)."""

    KEEP_DEBT = "KeepDebt"  # a negative deficit is kept
    PAPER = "Paper"  # the deficit is set to zero, as in the paper; a client can exploit this


class QueueOwner(Enum):
    """Where the waiting requests of a replica are ordered (design R12)."""

    ENGINE = "Engine"  # in the engine
    ROUTER = "Router"  # in the router, which sends the engine little more than its batch takes
    AUTO = "Auto"  # in the router for replicas that send no reports, in the engine for others


class OnMismatch(Enum):
    """What an engine does in which the plug-in's policy cannot order the queue, because the plug-in does not fit the engine."""

    GATE = "Gate"  # it starts with its own order, and routers order its queue
    REFUSE = "Refuse"  # it stops at once
