"""How and where the waiting requests of a replica are ordered: names and settings that spec, RouterConfig and engine settings share.

A setting is a number or a word: `Auto`, `Off`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, Self

from evenkeel_contract.values import Spelled, show


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


class RequestOrder(Enum):
    """Which of the requests that DLPM may admit goes first (docs/design/0007)."""

    LONGEST_MATCH = "LongestMatch"  # the request with the longest cached prompt
    MATCH_OCTAVES = "MatchOctaves"  # short prompts before long ones where little is cached


DEFAULT_ORDER: Final = RequestOrder.MATCH_OCTAVES
"""Order of a service that sets none. Configurations leave it out: older engines and routers do not know the setting."""


class QueueOwner(Enum):
    """Where the waiting requests of a replica are ordered (design R12)."""

    ENGINE = "Engine"  # in the engine
    ROUTER = "Router"  # in the router, which sends the engine little more than its batch takes
    AUTO = "Auto"  # in the router for replicas that send no reports, in the engine for others


class OnMismatch(Enum):
    """What an engine does in which the plug-in's policy cannot order the queue, because the plug-in does not fit the engine."""

    GATE = "Gate"  # it starts with its own order, and routers order its queue
    REFUSE = "Refuse"  # it stops at once


@dataclass(frozen=True, slots=True)
class QuantumSetting(Spelled):
    """A positive whole number of weighted tokens (`8000`), or `Auto`."""

    EXAMPLE: ClassVar[str] = "Auto"
    PATTERN: ClassVar[str] = "Auto"
    tokens: int | None
    """Weighted tokens; None for `Auto`."""

    @classmethod
    def from_plain(cls, data: object) -> Self:
        if data == cls.PATTERN:
            return cls(cls.PATTERN, None)
        if isinstance(data, int) and not isinstance(data, bool) and 1 <= data < 2**31:
            return cls(data, data)
        raise ValueError(f"must be Auto or a whole number from 1 to {2**31 - 1}, not {show(data)}")


@dataclass(frozen=True, slots=True)
class IsolationSetting(Spelled):
    """A percentage from 0% to 200%, or `Off`."""

    EXAMPLE: ClassVar[str] = "50%"
    PATTERN: ClassVar[str] = r"(200|1[0-9][0-9]|[1-9]?[0-9])%|Off"
    share: float | None
    """50% is 0.5; None for `Off`."""

    @classmethod
    def from_plain(cls, data: object) -> Self:
        match = re.fullmatch(cls.PATTERN, data) if isinstance(data, str) else None
        if match is None:
            raise ValueError(f"must be Off or a percentage from 0% to 200%, not {show(data)}")
        return cls(match[0], int(match[1]) / 100 if match[1] else None)
