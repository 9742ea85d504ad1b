"""What replicas reported last, merged (design R3; contract/reports.py).

Place in the flow: report → **merge** → `/v1/state`. An answer holds only the clients that changed; totals are
cumulative, so merging is replacing, and merging twice does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from evenkeel_contract.reports import ClientReport, Report

MAX_CLIENTS: Final = 100_000  # of one replica, in memory


@dataclass(slots=True)
class Seen:
    """One replica incarnation."""

    incarnation: str
    policy: str = ""
    sequence: int = 0
    received_s: float = 0.0
    clients: dict[str, ClientReport] = field(default_factory=dict)

    def merge(self, report: Report, now_s: float) -> None:
        """A report of this incarnation. A complete one (`since` 0) replaces everything."""
        if report.since == 0:
            self.clients.clear()
        self.policy = report.policy
        self.sequence = report.sequence
        self.received_s = now_s
        for client in report.clients:
            if client.client in self.clients or len(self.clients) < MAX_CLIENTS:
                self.clients[client.client] = client
