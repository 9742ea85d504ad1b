"""What the router knows of its replicas' caches in tokens mode."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenkeel_router.prefix.kv_follower import Follower
from evenkeel_router.prefix.tokenised import Untokenised


@dataclass(slots=True)
class Prefixes:
    """One router's view."""

    untokenised: Untokenised = field(default_factory=Untokenised)
    """Requests that were matched by their text instead, and why."""
    followers: dict[str, Follower] = field(default_factory=dict)
    """The follower of each replica's KV events, by name."""
