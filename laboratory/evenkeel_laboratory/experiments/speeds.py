"""Speeds of replicas in virtual time (R2). A router takes them from reports, once a second."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

from evenkeel_fairshare.fleet.contract import FleetPolicy
from evenkeel_fairshare.saturation import Saturation
from evenkeel_simulator.engine.model import Engine

MEASURE_S: Final = 1.0
"""Time between two measurements, as between two reports of a replica."""


class Speeds:
    """Speeds of the replicas of one fleet, for policies that use them."""

    def __init__(self, policy: FleetPolicy) -> None:
        self._policy = policy
        self._saturation = Saturation()
        uses = type(policy).measured is not FleetPolicy.measured
        self.due_s = 0.0 if uses else inf
        """When the next measurement is due."""

    def measure(self, engines: Sequence[Engine], now_s: float) -> None:
        """Report the speeds to the policy."""
        self.due_s = now_s + MEASURE_S
        for slot, engine in enumerate(engines):
            service = sum([one.service for one in engine.accounts_at(now_s).clients.values()])
            waits = len(engine.policy) > 0
            self._saturation.observe(str(slot), service=service, waits=waits, now_s=now_s)
        self._policy.measured({int(n): speed for n, speed in self._saturation.speeds().items()})
