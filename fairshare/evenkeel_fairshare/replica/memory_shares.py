"""The KV pool of one engine, shared among the clients (design R16; docs/design/0010).

A client that holds most of the pool keeps all others out until its requests end, whatever the order of the queue is. Idle memory may
be borrowed by anybody. But a client below its share of the pool that finds no room when it is its turn has a claim, after `CLAIM_S`
if half of its share is enough, else after `WHOLE_CLAIM_S`: requests of clients above their shares go back to the queue, the smallest
loss first, until it finds room.

The share of a client is a part of the pool, by weight among those with an open request: of tenants, and then of the clients of the
tenant (R9). What a client holds is what its running requests computed: a prefix that others computed costs nothing to hold (R10).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from evenkeel_fairshare.replica.contract import Request

CLAIM_S: Final = 0.5
"""Time without room after which a client gets memory back, if its request stays within half of its share."""
WHOLE_CLAIM_S: Final = 5.0
"""Time without room after which a client gets memory back that needs more of its share. Many clients of a busy engine are a little below their shares at any time, and
what is given back is computed again."""
LOOK_S: Final = 0.1
"""Time between two looks at those who wait while the pool is full."""


class _Level:
    """Tenants, or the clients of one tenant, that have an open request."""

    __slots__ = ("members", "weight")

    def __init__(self) -> None:
        self.members: dict[str, _Member] = {}
        self.weight = 0.0
        """Weight of all members together."""

    def join(self, name: str, weight: float, parent: _Member | None = None) -> _Member:
        """The member, with one more open request. The newest weight counts."""
        member = self.members.get(name)
        if member is None:
            member = self.members[name] = _Member(name, self, parent)
        self.weight += weight - member.weight
        member.weight = weight
        member.open += 1
        return member


class _Member:
    """A tenant, or a client of one."""

    __slots__ = (
        "base_tokens", "clients", "decoding", "level", "name", "open", "parent", "running", "since_s", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, name: str, level: _Level, parent: _Member | None) -> None:
        self.name = name
        self.level = level
        self.parent = parent
        """The tenant of a client."""
        self.clients = _Level()
        """The clients of a tenant; of a client none."""
        self.weight = 0.0
        self.open = 0
        """Requests that wait or run."""
        self.base_tokens = 0
        """Tokens that its running requests hold, less all decode steps so far for each that decodes."""
        self.decoding = 0
        # Of a client only.
        self.waiting: dict[Request, None] = {}
        self.running: dict[Request, int] = {}
        """Running requests, and the part of each in `base_tokens`."""
        self.since_s = inf
        """Time since when it finds no room when it is its turn, although it stays within its share."""

    @property
    def share(self) -> float:
        """The part of the pool that belongs to the member."""
        own = self.weight / self.level.weight
        return own if self.parent is None else own * self.parent.share


class MemoryShares:
    """The shares of one engine's pool. Deterministic: the same calls give the same answers."""

    def __init__(self, pool_tokens: int) -> None:
        self._pool_tokens = pool_tokens
        self._tenants = _Level()
        self._clients: dict[Request, _Member] = {}
        self._decoding: dict[Request, None] = {}
        self._steps = 0
        """Decode steps so far."""
        self._is_short = False
        """Whether a request found no room, and none has left the batch since. A batch may be full of requests too."""
        self._looked_s = -inf
        self._claimants: dict[_Member, None] = {}
        """Clients with a claim. If there are any, clients above their shares wait in the next pass, or in this one."""
        self._due: tuple[_Member, int] | None = None
        """A client whose claim has to be met now, and the tokens that it lacks."""

    # The way of a request

    def opens(self, request: Request) -> None:
        """A request arrived."""
        tenant = self._tenants.join(request.tenant, request.tenant_weight)
        client = tenant.clients.join(request.client, request.client_weight, tenant)
        client.waiting[request] = None
        self._clients[request] = client

    def starts(self, request: Request) -> None:
        """A request enters its prefill, with `extend_tokens` to compute."""
        client = self._clients[request]
        del client.waiting[request]
        client.running[request] = 0
        self._hold(client, request, request.extend_tokens)
        client.since_s = inf

    def decodes(self, request: Request) -> None:
        """The prefill of a request is complete, with its first token."""
        client = self._clients[request]
        self._decoding[request] = None
        for member in _line(client):
            member.decoding += 1
        # Less the steps so far: then no decode step needs to update the sums.
        self._hold(client, request, 1 - self._steps)

    def stepped(self, steps: int) -> None:
        """All requests that decode produced so many tokens."""
        self._steps += steps

    def stops(self, request: Request) -> None:
        """A request leaves the batch. It waits again, or is about to close."""
        client = self._clients[request]
        self._is_short = False
        self._hold(client, request, -client.running[request])
        del client.running[request]
        client.waiting[request] = None
        if request in self._decoding:
            del self._decoding[request]
            for member in _line(client):
                member.decoding -= 1

    def closes(self, request: Request) -> None:
        """A request ended; it had left the batch."""
        client = self._clients.pop(request)
        del client.waiting[request]
        for member in _line(client):
            member.open -= 1
            if not member.open:
                del member.level.members[member.name]
                # Exactly 0 when the last one leaves: a rounding error would remain.
                member.level.weight -= (
                    member.weight if member.level.members else member.level.weight
                )

    # Answers

    def wants_pass(self, now_s: float) -> bool:
        """Asked while the pool is full: whether a pass has to follow in which clients above their shares wait, since another one has
        a claim."""
        if not self._is_short or now_s < self._looked_s + LOOK_S:
            return False
        was_full, self._looked_s = now_s < self._looked_s + 3 * LOOK_S, now_s
        for tenant in self._tenants.members.values():
            for client in tenant.clients.members.values():
                claim_s = self._claim_s(client)
                if claim_s is None:
                    client.since_s = inf
                    continue
                client.since_s = min(client.since_s, now_s) if was_full else now_s
                if client.since_s + claim_s <= now_s:
                    client.since_s = now_s
                    self._claimants[client] = None
        return bool(self._claimants)

    def must_wait(self, request: Request) -> bool:
        """Whether a request has to wait in this pass, since its client has its share of the memory and others have a claim."""
        if not self._claimants:
            return False
        client = self._clients[request]
        return bool(client.running) and self._part(client, request) > 1

    def lacks(self, request: Request, missing_tokens: int) -> None:
        """A request found no room, since the free memory is too small by `missing_tokens`."""
        client = self._clients[request]
        self._is_short = True
        if client in self._claimants and self._part(client, request) <= 1:
            self._due = (client, missing_tokens)

    def end_pass(self) -> None:
        """The pass ended."""
        self._claimants.clear()

    def given_back(self) -> list[Request]:
        """Running requests that have to go back to the queue now, so that a claim is met."""
        if self._due is None:
            return []
        (claimant, missing_tokens), self._due = self._due, None
        given: list[Request] = []
        left = dict[_Member, int]()
        for tokens, giver, request in sorted(self._able(claimant), key=lambda one: one[0]):
            if missing_tokens <= 0:
                break
            held = {node: left.get(node, self._held(node)) for node in _line(giver)}
            needs = (giver,) if giver.parent is claimant.parent else _line(giver)
            if all(held[node] > node.share * self._pool_tokens for node in needs):
                given.append(request)
                missing_tokens -= tokens
                left |= {node: held[node] - tokens for node in held}
        return given

    def is_above_share(self, request: Request) -> bool:
        """Whether the client of a running request and its tenant hold more than their shares."""
        return all(map(self._is_above, _line(self._clients[request])))

    def _able(self, claimant: _Member) -> Iterator[tuple[int, _Member, Request]]:
        """(tokens that it holds, its client, running request) of those that may have to give memory back."""
        assert claimant.parent is not None
        siblings_only = self._is_above(claimant.parent)
        for tenant in self._tenants.members.values():
            if tenant is not claimant.parent and (siblings_only or not self._is_above(tenant)):
                continue
            for client in tenant.clients.members.values():
                if client is not claimant and self._is_above(client):
                    # The newest first: of equal losses the last to begin goes.
                    for request, tokens in reversed(client.running.items()):
                        steps = self._steps if request in self._decoding else 0
                        yield tokens + steps, client, request

    def _hold(self, client: _Member, request: Request, tokens: int) -> None:
        client.running[request] += tokens
        for member in _line(client):
            member.base_tokens += tokens

    def _held(self, member: _Member) -> int:
        return member.base_tokens + member.decoding * self._steps

    def _claim_s(self, client: _Member) -> float | None:
        """Time without room after which its oldest request has a claim; None: it has none."""
        part = self._part(client, next(iter(client.waiting))) if client.waiting else inf
        return None if part > 1 else CLAIM_S if part <= 0.5 else WHOLE_CLAIM_S

    def _part(self, client: _Member, request: Request) -> float:
        """The part of its share that it holds with one more request."""
        # With its output so far: a request that was retracted computes that again.
        needed = max(1, request.input_tokens + request.output_tokens - request.matched_tokens)
        return (self._held(client) + needed) / (client.share * self._pool_tokens)

    def _is_above(self, member: _Member) -> bool:
        return self._held(member) > member.share * self._pool_tokens


def _line(client: _Member) -> tuple[_Member, _Member]:
    """A client and its tenant."""
    assert client.parent is not None
    return client, client.parent
