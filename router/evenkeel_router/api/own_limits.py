"""Limits of one client beside its tenant's: the tenant's default for clients, and ceilings of a signed key."""

from __future__ import annotations

from evenkeel_contract.routerconfig import TenantLimits
from evenkeel_contract.signedkeys import SignedKey


def default_of(limits: TenantLimits) -> TenantLimits | None:
    """The limits of each client of a tenant; None if clients have none."""
    given = limits.default_client
    if given is None:
        return None
    found = TenantLimits(
        requests_per_minute=given.requests_per_minute,
        tokens_per_minute=given.tokens_per_minute,
        max_concurrent=given.max_concurrent,
    )
    return None if found == TenantLimits() else found


def with_ceilings(default: TenantLimits | None, key: SignedKey) -> TenantLimits | None:
    """The limits of a client with a signed key: each ceiling of the key replaces the default."""
    if not (key.requests_per_minute or key.tokens_per_minute or key.max_concurrent):
        return default
    given = default or TenantLimits()
    return TenantLimits(
        requests_per_minute=key.requests_per_minute or given.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute or given.tokens_per_minute,
        max_concurrent=key.max_concurrent or given.max_concurrent,
    )
