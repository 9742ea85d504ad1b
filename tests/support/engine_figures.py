"""What an account of engine time holds of each client, for tests."""

from __future__ import annotations

from evenkeel_fairshare.replica.engine_time import EngineTime
from evenkeel_fairshare.replica.time_levels import MAX_LAG_S, Member


def figures(time: EngineTime) -> dict[str, tuple[float, float]]:
    """(lead, lag) in seconds of each client with an open request. The lead is its tenant's if that is larger."""
    return {
        name: (max(lead_s(client), lead_s(tenant)), client.lag_s)
        for tenant in time._tenants.active.values()
        for name, client in tenant.children.active.items()
    }


def lead_s(member: Member) -> float:
    """Engine time that it used beyond its share, from 0 to `MAX_LAG_S`."""
    ahead_s = (member.used_until_s - member.level.virtual_s) * member.weight
    return min(max(ahead_s, 0.0), MAX_LAG_S)
