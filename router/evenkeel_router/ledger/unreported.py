"""Names that routers give to the processes of replicas without reports, each router its own (R12)."""

from __future__ import annotations

from typing import Final

UNREPORTED: Final = "~"
"""First character of the names that routers give to incarnations without reports."""


def name_of(replica: str, router: str) -> str:
    """The names that a router gives to the processes of a replica without reports begin like this."""
    return f"{UNREPORTED}{replica}@{router}#"


def router_of(incarnation: str) -> str:
    """The router that gave an incarnation without reports its name; empty: the incarnation reports."""
    if not incarnation.startswith(UNREPORTED):
        return ""
    return incarnation.rpartition("@")[2].rpartition("#")[0]


def replica_of(incarnation: str) -> str:
    """A common name of the incarnations that several routers account for one replica without reports; else the incarnation's own."""
    return incarnation.rpartition("@")[0] if incarnation.startswith(UNREPORTED) else incarnation
