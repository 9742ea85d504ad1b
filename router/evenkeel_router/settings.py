"""The configuration that a router runs with, and the durations that no configuration sets."""

from __future__ import annotations

from dataclasses import dataclass

from evenkeel_contract.routerconfig import RouterConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Durations that no configuration sets; tests do."""

    probe_interval_s: float = 1.0
    first_rest_s: float = 1.0
    """Rest of a suspect replica before its first probe (`fleet.suspicion`)."""
    overdue_s: float = 10.0
    """Least time after which a replica that sends nothing to any client counts as silent."""
    avoid_s: float = 5.0
    """Time in which the requests of a client avoid a replica that failed one of them."""
    report_interval_s: float = 1.0
    gate_interval_s: float = 0.5
    """Time between two readings of an engine's queue that this router orders. SGLang needs some milliseconds for a
    page of metrics."""
    settle_s: float = 30.0
    """Time after its start before a router closes an incarnation that no router reports as live."""
    return_s: float = 30.0
    """Time in which a replica that left the configuration may return as the same incarnation."""
    compact_interval_s: float = 10.0
    share_interval_s: float = 5.0  # as between cells
    """Time between two sets of weights where tenants share several services (R22)."""
    console_tick_s: float = 2.0
    """Time between two readings for the console; five of them are the window of its figures."""
    body_timeout_s: float = 20.0
    """Time for the next 20 KiB of a body, or for its end (`transport.client_request.BODY_STEP_BYTES`)."""
    head_timeout_s: float = 60.0  # as in nginx (`client_header_timeout`)
    """Time for the first head of a connection, and for each head that has begun."""
    kv_check_interval_s: float = 2.0
    """Silence of a replica's KV events after which the router asks for a replay."""
    kv_pages_interval_s: float = 30.0
    """Time between two requests for all pages of a replica: an answer costs the replica more than a report."""


class Settings:
    """The configuration in force. `config` is replaced as a whole; readers must not keep parts of it."""

    __slots__ = ("config", "faults", "timing")

    def __init__(self, config: RouterConfig, timing: Timing | None = None) -> None:
        self.config = config
        self.timing = timing if timing is not None else Timing()
        self.faults: tuple[str, ...] = ()
        """Faults of a newer configuration that is invalid; empty while the newest one is in use."""
