"""Whether a request may enter: the limits of its tenant, bounded concurrency, and memory for its body (design §5.2).

A tenant's limits count over all routers: this router admits what its parts of them allow (`ledger/limit_parts.py`).

One client that floods must not take up all requests and bytes that the router can hold: every other client would be
refused before any scheduler saw it. So the client that holds most is refused first, by dynamic thresholds (Choudhury
and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998): no client may hold more than
`SHARE_FACTOR` times what is free. One client alone gets 8/9 of all; n clients that flood get 8/(8n + 1) each, as their
requests end, and 1/(8n + 1) stays free.

The unit of every count is the sequence: prompts times answers to each (R19). A request of more sequences than a limit allows enters
when all of the limit is free, and uses it alone; of a rate it leaves a debt.

Tokens are counted after the fact. A request enters while its tenant's bucket is not empty; the estimate of its input
is taken out then, the rest of what it used at its end. That may leave a debt, so a request larger than the whole
burst is served now and then, not refused forever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from evenkeel_contract.consolestate import LimitNow
from evenkeel_contract.routerconfig import LimitsConfig, TenantLimits

from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.identity import Client
from evenkeel_router.ledger.limit_parts import TINY, LimitPart, LimitParts, unshared_parts

TopUp = Callable[[LimitPart, float], Awaitable[bool]]
"""Asks other routers for what a request needs of a limit; False if they cannot give it."""
_MINUTE_S: Final = 60.0
_BUSY_RETRY_S: Final = 1.0  # when a running request ends is not known
_NO_PART_RETRY_S: Final = 1.0
MAX_TENANTS: Final = 4096
"""Tenants that are remembered though nothing of theirs is in flight: a proxy may name any number of them."""
MAX_LIMITED: Final = 4096
"""Clients with limits of their own that are remembered though nothing of theirs is in flight."""
SHARE_FACTOR: Final = 8
"""One party alone gets 8/9 of the bound; n parties that ask for more get 8/(8n + 1) each."""


def may_hold_more(held: int, free: int) -> bool:
    """Whether a party that holds `held` of a shared bound may take more, when that leaves `free` (0 or more) for all.

    Dynamic thresholds (Choudhury and Hahne, 1998).
    """
    return held <= SHARE_FACTOR * free


@dataclass(slots=True, eq=False)
class BodyMemory:
    """Bytes of bodies in memory, with one limit for all of them. No tenant can use all of it."""

    limit_bytes: int
    used_bytes: int = 0
    _tenants: dict[str, TenantMemory] = field(default_factory=dict)
    """Tenant → what it holds. Beyond `MAX_TENANTS`, those that hold nothing are dropped."""

    def of(self, tenant: str) -> TenantMemory:
        """What one tenant holds of it."""
        memory = self._tenants.get(tenant)
        if memory is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._tenants = {name: one for name, one in self._tenants.items() if one.is_used}
            memory = self._tenants[tenant] = TenantMemory(self)
        return memory


@dataclass(slots=True, eq=False)
class TenantMemory:
    """The body memory, for one tenant."""

    _all: BodyMemory
    _held_bytes: int = 0

    @property
    def is_used(self) -> bool:
        """Whether the tenant holds any."""
        return self._held_bytes > 0

    def reserve(self, size_bytes: int) -> None:
        """Use some of it; raises `Refusal`."""
        memory = self._all
        free_bytes = memory.limit_bytes - memory.used_bytes - size_bytes
        if free_bytes < 0:
            message = f"The router already holds {memory.used_bytes} bytes of request bodies, which is its limit."
            raise Refusal(Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=1)
        if self._held_bytes > SHARE_FACTOR * free_bytes:  # as `may_hold_more`
            message = (
                f"The tenant's requests already hold {self._held_bytes} bytes in the router; "
                "the router keeps the remaining memory for other tenants."
            )
            raise Refusal(Outcome.RATE_LIMITED, message, code="max_buffered", retry_after_s=1)
        memory.used_bytes += size_bytes
        self._held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Free what was reserved."""
        self._all.used_bytes -= size_bytes
        self._held_bytes -= size_bytes


class PartUsedUp(Refusal):
    """This router's part of a limit is too small for the request; other routers may have what it needs."""

    def __init__(
        self, message: str, *, code: str, retry_after_s: float, limit: LimitPart, amount: float
    ) -> None:
        super().__init__(Outcome.RATE_LIMITED, message, code=code, retry_after_s=retry_after_s)
        self.limit = limit
        self.amount = amount
        """What the request needs of the limit."""


@dataclass(slots=True, eq=False)
class _Tenant:
    """One tenant's requests here, and the parts of its limits. A part that was used once is counted ever after. A client with
    limits of its own is counted in the same way."""

    _name: str
    _parts: LimitParts
    _what: str = "tenant"
    limits: TenantLimits | None = None
    """Limits as configured at the last `update`; None before."""
    is_limited: bool = False
    """Whether the tenant has, or ever had, a limit here."""
    running: int = 0
    requests: LimitPart | None = None
    tokens: LimitPart | None = None
    slots: LimitPart | None = None
    """Part of the limit of concurrent requests; None without one."""

    def update(self, limits: TenantLimits, now_s: float) -> None:
        """Follow a changed configuration."""
        self.limits = limits
        if limits.requests_per_minute:
            self.requests = self._rate(
                "requests", limits.requests_per_minute, limits.burst_requests, now_s
            )
        if limits.tokens_per_minute:
            self.tokens = self._rate("tokens", limits.tokens_per_minute, limits.burst_tokens, now_s)
        if limits.max_concurrent:
            is_new = self.slots is None
            self.slots = self._part("concurrent", limits.max_concurrent, 0.0, now_s)
            if is_new:
                self.slots.take(self.running, now_s)

    def _rate(self, kind: str, per_minute: int, burst: int | None, now_s: float) -> LimitPart:
        burst = burst or max(1, per_minute // 10)
        return self._part(kind, burst, _MINUTE_S * burst / per_minute, now_s)

    def _part(self, kind: str, size: float, fill_s: float, now_s: float) -> LimitPart:
        self.is_limited = True
        return self._parts.limit(f"{kind} {self._name}", size=size, fill_s=fill_s, now_s=now_s)

    def check(self, limits: TenantLimits, tokens: int, now_s: float, sequences: int = 1) -> None:
        """Raise `PartUsedUp` for the first limit of which too little is free."""
        if limits.requests_per_minute and self.requests is not None:
            need = min(float(sequences), self.requests.size)
            self.requests.asked(need, now_s)
            if self.requests.free(now_s) < need - TINY:
                raise self._used_up(
                    self.requests,
                    f"The {self._what} used up its limit of {limits.requests_per_minute} requests per minute. "
                    f"{_burst(self.requests, 'request')}{_needs(need)}",
                    code="requests_per_minute",
                    amount=need,
                    now_s=now_s,
                )
        if limits.tokens_per_minute and self.tokens is not None:
            self.tokens.asked(max(1, tokens), now_s)
            if self.tokens.free(now_s) <= TINY:
                raise self._used_up(
                    self.tokens,
                    f"The {self._what} used up its limit of {limits.tokens_per_minute} tokens per minute. "
                    f"{_burst(self.tokens, 'token')}",
                    code="tokens_per_minute",
                    amount=float(max(1, tokens)),
                    now_s=now_s,
                )
        if limits.max_concurrent and self.slots is not None:
            need = min(float(sequences), self.slots.size)
            self.slots.asked(need, now_s)
            if self.slots.free(now_s) < need - TINY:
                few = f"The {self._what} has {limits.max_concurrent} requests in flight, which is its limit."
                many = f"The {self._what} may have {limits.max_concurrent} requests in flight.{_needs(need)}"
                raise self._used_up(
                    self.slots,
                    few if need == 1 else many,
                    code="max_concurrent",
                    amount=need,
                    now_s=now_s,
                )

    def check_alone(self, limits: TenantLimits, tokens: int, now_s: float, sequences: int) -> None:
        """Raise `Refusal` for the first limit of which too little is free, where other routers have nothing of it."""
        try:
            self.check(limits, tokens, now_s, sequences)
        except PartUsedUp as refusal:
            raise Refusal(
                refusal.outcome,
                refusal.message,
                code=refusal.code,
                retry_after_s=refusal.retry_after_s,
            ) from refusal

    def _used_up(
        self, limit: LimitPart, message: str, *, code: str, amount: float, now_s: float
    ) -> PartUsedUp:
        need = 1.0 if limit is self.tokens else amount
        wait_s = limit.wait_s(now_s, need) or _BUSY_RETRY_S
        if not self._parts.has_entered:
            message = "This router cannot count the tenant's limits yet, because not all routers answer. Send the request again."
            wait_s = _NO_PART_RETRY_S
        return PartUsedUp(message, code=code, retry_after_s=wait_s, limit=limit, amount=amount)

    def used(self, now_s: float) -> Iterator[LimitNow]:
        """The limits as they are now."""
        limits = self.limits
        if limits is None:
            return
        for kind, limit, part in (
            ("requests", limits.requests_per_minute, self.requests),
            ("tokens", limits.tokens_per_minute, self.tokens),
            ("concurrent", limits.max_concurrent, self.slots),
        ):
            if limit and part is not None:
                used = part.part - part.level(now_s)
                yield LimitNow(
                    tenant=self._name,
                    kind=kind,
                    limit=limit,
                    burst=round(part.size),
                    used=used,
                    resets_s=part.wait_s(now_s, part.part * part.size),
                )

    def enter(self, tokens: int, now_s: float, sequences: int) -> None:
        """Take what a request that enters uses of the limits."""
        if self.requests is not None:
            self.requests.take(sequences, now_s)
        if self.slots is not None:
            self.slots.take(sequences, now_s)
        self.use(tokens, now_s)

    def leave(self, tokens: int, now_s: float, sequences: int) -> None:
        """Give its slots back, and take the tokens that it used beyond the estimate."""
        if self.slots is not None:
            self.slots.take(-sequences, now_s)
        self.use(tokens, now_s)

    def use(self, tokens: int, now_s: float) -> None:
        """Take so many tokens more than were taken before; may be negative."""
        if self.tokens is not None:
            self.tokens.take(tokens, now_s)


class Admission:
    """Counts what is in flight. One `enter` for each `leave`."""

    def __init__(self, limits: LimitsConfig, parts: LimitParts) -> None:
        self.limits = limits
        """Limits in force. They may be replaced at any time; what is in flight stays."""
        self.running = 0
        self._parts = parts
        self._tenants: dict[str, _Tenant] = {}
        """Beyond `MAX_TENANTS`, those without limits and without requests in flight are dropped."""
        self._clients: dict[str, int] = {}  # no zeros: bounded by what is in flight
        self._limited: dict[str, _Tenant] = {}
        """Clients with limits of their own. Beyond `MAX_LIMITED`, those without requests in flight are dropped."""

    def enter(  # noqa: C901 - one limit after another, without calls that each request would pay for
        self, client: Client, tokens: int, now_s: float, sequences: int = 1
    ) -> None:
        """Let a request of about `tokens` input tokens in; raises `Refusal` and then counts nothing."""
        limits = self.limits
        free = limits.max_concurrent - self.running - sequences  # with this request in flight
        if free < 0 and (self.running or sequences == 1):
            message = f"The router is full ({self.running} requests in flight).{_needs(sequences)}"
            raise Refusal(
                Outcome.UNAVAILABLE, message, code="overloaded", retry_after_s=_BUSY_RETRY_S
            )
        tenant = self._tenants.get(client.tenant_identity)
        if tenant is None or tenant.limits is not client.limits:
            tenant = self._updated(client, now_s)
        if tenant.is_limited:
            tenant.check(client.limits, tokens, now_s, sequences)
            if client.own_limits is not None:
                own = self._own(client, client.own_limits, now_s)
                own.check_alone(client.own_limits, tokens, now_s, sequences)
        held = self._clients.get(client.identity, 0)
        allowed = limits.max_concurrent_per_client
        if allowed and held and held + sequences > allowed:
            message = f"The client has {held} requests in flight, which is its limit."
            if sequences > 1:
                message = f"The client may have {allowed} requests in flight.{_needs(sequences)}"
            raise _limited(message)
        if self.running:  # else the request has the router for itself
            more = sequences - 1
            if not may_hold_more(tenant.running + more, free):
                raise _greedy("tenant", tenant.running, self.running)
            if not may_hold_more(held + more, SHARE_FACTOR * free - tenant.running - more):
                raise _greedy("client", held, self.running)
        tenant.running += sequences
        if tenant.is_limited:
            tenant.enter(tokens, now_s, sequences)
            if client.own_limits is not None:
                own.running += sequences
                own.enter(tokens, now_s, sequences)
        self._clients[client.identity] = held + sequences
        self.running += sequences

    def used(self, now_s: float) -> Iterator[LimitNow]:
        """The limits of every tenant that sent a request here."""
        for tenant in self._tenants.values():
            yield from tenant.used(now_s)

    def correct(self, client: Client, tokens: int, now_s: float) -> None:
        """An admitted request has so many more input tokens than estimated; may be negative."""
        self._tenants[client.tenant_identity].use(tokens, now_s)
        if client.own_limits is not None:
            self._limited[client.identity].use(tokens, now_s)

    def leave(self, client: Client, tokens: int, now_s: float, sequences: int = 1) -> None:
        """A request is over. `tokens`: what it used beyond the estimate at its start; may be negative."""
        tenant = self._tenants[client.tenant_identity]
        tenant.running -= sequences
        if tenant.is_limited:
            tenant.leave(tokens, now_s, sequences)
            if client.own_limits is not None:
                own = self._limited[client.identity]
                own.running -= sequences
                own.leave(tokens, now_s, sequences)
        held = self._clients[client.identity] - sequences
        if held:
            self._clients[client.identity] = held
        else:
            del self._clients[client.identity]
        self.running -= sequences

    def _updated(self, client: Client, now_s: float) -> _Tenant:
        """The client's tenant, new or with changed limits."""
        tenant = self._tenants.get(client.tenant_identity)
        if tenant is None:
            if len(self._tenants) >= MAX_TENANTS:
                kept = self._tenants.items()
                self._tenants = {name: one for name, one in kept if one.running or one.is_limited}
            tenant = _Tenant(client.tenant_identity, self._parts)
            self._tenants[client.tenant_identity] = tenant
        tenant.update(client.limits, now_s)
        if client.own_limits is not None:
            tenant.is_limited = True  # its clients are looked at from now on
        return tenant

    def _own(self, client: Client, limits: TenantLimits, now_s: float) -> _Tenant:
        """The limits of one client, new or changed."""
        own = self._limited.get(client.identity)
        if own is None:
            if len(self._limited) >= MAX_LIMITED:
                self._limited = {name: one for name, one in self._limited.items() if one.running}
            # Of this router alone: the parts of every client that ever came would be too much to exchange.
            parts = unshared_parts(self._parts.router, now_s)
            own = self._limited[client.identity] = _Tenant(client.identity, parts, "client")
        if own.limits != limits:
            own.update(limits, now_s)
        return own


async def topped_up(  # noqa: PLR0917 - the state of one request, called once
    admission: Admission,
    top_up: TopUp,
    client: Client,
    tokens: int,
    now: Callable[[], float],
    *,
    refusal: PartUsedUp,
    sequences: int = 1,
) -> None:
    """Repeat a refused `enter` while other routers give what they have of the limit that is used up here."""
    while await top_up(refusal.limit, refusal.amount):
        try:
            return admission.enter(client, tokens, now(), sequences)
        except PartUsedUp as again:
            refusal = again
    raise refusal


def _burst(limit: LimitPart, what: str) -> str:
    """How much of a rate may come at once, and how fast it comes back."""
    size = f"{limit.size:.0f}"
    many = what if size == "1" else f"{what}s"
    each_s = limit.fill_s / limit.size
    if each_s >= 1:
        return f"Its burst is {size} {many}; one more is free every {each_s:.3g} s."
    return f"Its burst is {size} {many}; {1 / each_s:,.3g} more are free every second."


def _needs(sequences: float) -> str:
    """What a request of several sequences needs; empty for one."""
    if sequences <= 1:
        return ""
    return f" This request needs {sequences:.0f} free places; send fewer prompts or answers at a time, or wait."


def _greedy(whose: str, running: int, in_all: int) -> Refusal:
    return _limited(
        f"The {whose} already has {running} of the {in_all} requests in flight at this router. "
        f"The router keeps its remaining capacity for others."
    )


def _limited(message: str) -> Refusal:
    return Refusal(
        Outcome.RATE_LIMITED, message, code="max_concurrent", retry_after_s=_BUSY_RETRY_S
    )
