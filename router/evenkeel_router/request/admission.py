"""Whether a request may enter: rate limits per tenant, bounded concurrency (design §5.2).

Place in the flow: identify → **admit** → match. Limits protect the router and enforce what a tenant was
sold; fairness at the replicas is not their business and needs none of them.

What the router itself holds, requests and bytes, must not be taken up by one who floods: everybody else would be
refused before any scheduler saw them. So whoever holds most is refused first, by dynamic thresholds (Choudhury and
Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998): nobody may hold more than
`GREED` times what is free. One alone gets 8/9 of everything; n that flood get 8/(8n + 1) each, as their requests
end, and 1/(8n + 1) is left for who comes next; no reservation, nobody interrupted, nothing to configure.

The surprising thing: tokens are counted after the fact. A request enters while its tenant's token bucket
is not empty; the estimate of its input is taken out then, the rest of what it really used at its end. That may
leave a debt, so a request larger than the whole budget is served now and then, not refused forever.
"""

from __future__ import annotations

from typing import Final

from evenkeel_contract.routerconfig import LimitsConfig, TenantLimits

from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.headroom import GREED, may_hold_more
from evenkeel_router.api.identity import Client
from evenkeel_router.api.outcomes import Outcome

_MINUTE_S: Final = 60.0
_BUSY_RETRY_S: Final = 1.0  # nothing tells when a running request ends


class TokenBucket:
    """At most `per_minute` on average, a minute's worth at once. The level may be negative: a debt."""

    __slots__ = ("_level", "_per_minute", "_updated_s")

    def __init__(self, per_minute: int, now_s: float) -> None:
        self._per_minute = per_minute
        self._level = float(per_minute)
        self._updated_s = now_s

    def set_rate(self, per_minute: int, now_s: float) -> None:
        """A changed limit: what was used stays used, what would overflow is lost."""
        self.level(now_s)
        self._level += per_minute - self._per_minute
        self._per_minute = per_minute

    def level(self, now_s: float) -> float:
        """What is left at `now_s`."""
        rate = self._per_minute / _MINUTE_S
        grown = self._level + rate * max(0.0, now_s - self._updated_s)
        self._level = min(float(self._per_minute), grown)
        self._updated_s = max(self._updated_s, now_s)
        return self._level

    def take(self, amount: float, now_s: float) -> None:
        """Take out, below zero if need be."""
        self._level = self.level(now_s) - amount

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until the level reaches `amount`; 0 if it does now."""
        missing = amount - self.level(now_s)
        return max(0.0, missing * _MINUTE_S / self._per_minute)


class _Tenant:
    """What one tenant used."""

    __slots__ = ("limits", "requests", "running", "tokens")

    def __init__(self, limits: TenantLimits, now_s: float) -> None:
        self.limits = limits
        self.running = 0
        self.requests = TokenBucket(limits.requests_per_minute, now_s)
        self.tokens = TokenBucket(limits.tokens_per_minute, now_s)

    def update(self, limits: TenantLimits, now_s: float) -> None:
        if limits != self.limits:
            self.limits = limits
            self.requests.set_rate(limits.requests_per_minute, now_s)
            self.tokens.set_rate(limits.tokens_per_minute, now_s)


class Admission:
    """Counts what is in flight. One `enter` for each `leave`."""

    def __init__(self, limits: LimitsConfig) -> None:
        self.limits = limits
        """May be replaced at any time; what is in flight stays."""
        self.running = 0
        self._tenants: dict[str, _Tenant] = {}  # as many as the configuration names, and anonymous
        self._clients: dict[str, int] = {}  # no zeros: bounded by what is in flight

    def enter(self, client: Client, tokens: int, now_s: float) -> None:
        """Let a request of about `tokens` input tokens in; raises `Refusal` and then counts nothing."""
        free = self.limits.max_concurrent - self.running - 1
        if free < 0:
            message = f"The router is full ({self.running} requests in flight)."
            raise Refusal(
                Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=_BUSY_RETRY_S
            )
        tenant = self._tenant(client, now_s)
        _check_rates(tenant, now_s)
        _check_concurrency("tenant", tenant.running, tenant.limits.max_concurrent)
        held = self.running_of(client.identity)
        allowed = self.limits.max_concurrent_per_client
        if allowed:
            _check_concurrency("client", held, allowed)
        if not may_hold_more(tenant.running, free):
            raise _greedy("tenant", tenant.running, self.running)
        if not may_hold_more(held, GREED * free - tenant.running):
            raise _greedy("client", held, self.running)
        if tenant.limits.requests_per_minute:
            tenant.requests.take(1, now_s)
        if tenant.limits.tokens_per_minute:
            tenant.tokens.take(tokens, now_s)
        tenant.running += 1
        self._clients[client.identity] = held + 1
        self.running += 1

    def correct(self, client: Client, tokens: int, now_s: float) -> None:
        """A request that is in has so many input tokens more than estimated; may be negative."""
        tenant = self._tenants[client.tenant_identity]
        if tenant.limits.tokens_per_minute:
            tenant.tokens.take(tokens, now_s)

    def leave(self, client: Client, tokens: int, now_s: float) -> None:
        """A request is over. `tokens`: what it used beyond the estimate at its start; may be negative."""
        tenant = self._tenants[
            client.tenant_identity
        ]  # as it is: `client` may be of an older config
        if tenant.limits.tokens_per_minute:
            tenant.tokens.take(tokens, now_s)
        tenant.running -= 1
        held = self._clients[client.identity] - 1
        if held:
            self._clients[client.identity] = held
        else:
            del self._clients[client.identity]
        self.running -= 1

    def running_of(self, identity: str) -> int:
        """Requests of a client in flight."""
        return self._clients.get(identity, 0)

    def _tenant(self, client: Client, now_s: float) -> _Tenant:
        tenant = self._tenants.get(client.tenant_identity)
        if tenant is None:
            tenant = self._tenants[client.tenant_identity] = _Tenant(client.limits, now_s)
        elif tenant.limits is not client.limits:
            tenant.update(client.limits, now_s)
        return tenant


def _check_rates(tenant: _Tenant, now_s: float) -> None:
    if tenant.limits.requests_per_minute:
        wait_s = tenant.requests.wait_s(1, now_s)
        if wait_s:
            message = f"More than {tenant.limits.requests_per_minute} requests per minute."
            raise _limited(message, code="requests_per_minute", retry_after_s=wait_s)
    if tenant.limits.tokens_per_minute and tenant.tokens.level(now_s) <= 0:
        message = f"More than {tenant.limits.tokens_per_minute} tokens per minute."
        wait_s = tenant.tokens.wait_s(1, now_s)
        raise _limited(message, code="tokens_per_minute", retry_after_s=wait_s)


def _check_concurrency(whose: str, running: int, allowed: int) -> None:
    if allowed and running >= allowed:
        message = f"The {whose} has {running} requests in flight, as many as it may."
        raise _limited(message, code="max_concurrent", retry_after_s=_BUSY_RETRY_S)


def _greedy(whose: str, running: int, in_all: int) -> Refusal:
    message = (
        f"The {whose} has {running} of the {in_all} requests that the router has in flight, as "
        f"many as leave room for others."
    )
    return _limited(message, code="max_concurrent", retry_after_s=_BUSY_RETRY_S)


def _limited(message: str, *, code: str, retry_after_s: float) -> Refusal:
    return Refusal(Outcome.RATE_LIMITED, message, code=code, retry_after_s=retry_after_s)
