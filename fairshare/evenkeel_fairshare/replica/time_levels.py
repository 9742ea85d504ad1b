"""Virtual time of tenants and of the clients of each tenant: who used more engine time than its share, and who lacks progress.

The two levels of weighted fair queueing under `engine_time`, which explains lead and lag. What a decode step takes is learnt from
measured steps: a fixed time, and time per request and token of context.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

REQUEST_TOKENS: Final = 192
"""A request in the batch costs as much as reading this many tokens of context: 121 to 366 in the profiles of
COST_MODEL.md §1, §3 and §4."""
MEMORY_STEPS: Final = 2000
"""Older steps fade: about a minute of decoding."""

Line = tuple[float, float]
"""(fixed seconds, seconds per unit of size) of a decode step."""


def step_size(requests: int, context_tokens: int) -> int:
    """The size of a decode step of so many requests."""
    return context_tokens + REQUEST_TOKENS * requests


class StepTimes:
    """Least squares over recent decode steps: seconds = fixed + slope · size. Size: context tokens and `REQUEST_TOKENS` for each
    request."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._size = 0.0
        self._seconds = 0.0
        self._variance = 0.0
        self._covariance = 0.0

    def observe(self, requests: int, context_tokens: int, times: Sequence[float]) -> None:
        """Decode steps of the same requests took so long, one after the other (Welford's update, with exponential weights).

        `context_tokens`: of the first step; each adds a token per request.
        """
        size = step_size(requests, context_tokens)
        weight, mean_size, mean_s = self._weight, self._size, self._seconds
        variance, covariance = self._variance, self._covariance
        for seconds in times:
            if weight < MEMORY_STEPS:
                weight += 1.0
            rate = 1.0 / weight
            away = size - mean_size
            mean_size += rate * away
            variance = (1 - rate) * (variance + rate * away * away)
            late = seconds - mean_s
            mean_s += rate * late
            covariance = (1 - rate) * (covariance + rate * away * late)
            size += requests
        self._weight, self._size, self._seconds = weight, mean_size, mean_s
        self._variance, self._covariance = variance, covariance

    def line(self) -> Line:
        """What is known now; neither figure is negative."""
        if not self._size:
            return 0.0, 0.0
        slope = max(0.0, self._covariance / self._variance) if self._variance else 0.0
        slope = min(slope, self._seconds / self._size)
        return self._seconds - slope * self._size, slope

    def predict(self, requests: int, context_tokens: int) -> float:
        """Seconds of a decode step; at least in proportion to its size where it is smaller than those seen."""
        fixed_s, slope = self.line()
        return fixed_s + slope * step_size(requests, context_tokens)


MAX_LAG_S: Final = 2.0
"""The most that a lag or a lead may be: about two prefills of 8192 tokens on a small GPU."""
LEAST_S: Final = 1e-9
"""A smaller lag or lead is a rounding error."""
CLEARLY: Final = 0.99
"""A figure below this part of another one is below it whatever the rounding errors."""
MAX_IDLE: Final = 4096
"""Idle members of a level whose lag and lead are kept."""

Leading = tuple[bool, bool]
"""Whether a client has a lead over other clients of its tenant, and over clients of other tenants."""
NOT_LEADING: Final[Leading] = (False, False)


class DecodeRun:
    """Decode steps between which the batch does not change."""

    __slots__ = ("batch", "before", "last_s", "least_s", "line", "seconds", "times")

    def __init__(self, times: Sequence[float], *, before: int, batch: int, line: Line) -> None:
        """`before`: decode steps before them; `batch`: requests; `line`: what is known of step times."""
        self.times = times
        self.before = before
        self.batch = batch
        self.seconds = sum(times)
        self.last_s = times[-1]
        self.least_s = min(times)
        self.line = line

    def progress_s(self, most_s: float, growth_s: float) -> float:
        """Progress of a client of which the first step counts for `most_s` at most, and each later one for `growth_s` more."""
        steps = enumerate(self.times)
        return sum([s if s < (most := most_s + growth_s * n) else most for n, s in steps])


class Member:
    """A tenant, or a client of a tenant."""

    __slots__ = (
        "_progress_until_s", "caught_up", "children", "context_tokens", "decoding", "level", "open", "parent", "running",
        "used_until_s", "weight",
    )  # fmt: skip

    def __init__(self, level: TimeLevel, parent: Member | None) -> None:
        self.level = level
        self.parent = parent
        self.children = TimeLevel(self)
        """Level of a tenant's clients; empty for a client."""
        self.weight = 1.0
        self.open = 0
        """Requests that wait or run."""
        self.used_until_s = 0.0
        """The virtual time of the level at which its use is its share."""
        self._progress_until_s = 0.0
        self.caught_up = False
        """Whether it decodes and has no lag after the last run. Then `progress_until_s` is that of its level."""
        self.decoding = 0
        """Requests that produce a token in each decode step."""
        # Of a client only.
        self.running = 0
        """Requests in prefill or decode."""
        self.context_tokens = 0
        """Input and output so far of its running requests, less all decode steps so far for each that decodes."""

    def decodes(self) -> None:
        """One more of its requests decodes."""
        self.decoding += 1
        if self.decoding == 1:
            self.level.decoders[self] = self.level.late[self] = None

    def stops_decoding(self) -> None:
        """One of its requests less decodes."""
        self.decoding -= 1
        if not self.decoding:
            self.progress_until_s = self.progress_until_s  # its own again
            del self.level.decoders[self], self.level.late[self]

    @property
    def progress_until_s(self) -> float:
        """The virtual time of the level at which its progress is its share, at most that of now. While it is idle: minus its lag."""
        return self.level.caught_up_s if self.caught_up else self._progress_until_s

    @progress_until_s.setter
    def progress_until_s(self, virtual_s: float) -> None:
        self._progress_until_s = virtual_s
        if self.caught_up:
            self.caught_up = False
            self.level.late[self] = None

    @property
    def share(self) -> float:
        """Part of all engine time that belongs to the member, which has an open request."""
        own = self.weight / self.level.weight
        return own if self.parent is None else own * self.parent.share

    @property
    def lag_s(self) -> float:
        """Progress that it lacks, from 0 to `MAX_LAG_S`; it has an open request."""
        return min((self.level.virtual_s - self.progress_until_s) * self.weight, MAX_LAG_S)

    @property
    def lags(self) -> bool:
        """Whether it has a lag."""
        return self.lag_s > LEAST_S

    @property
    def leading(self) -> Leading:
        """Whether this client has a lead over others of its tenant, and over those of other tenants; it has an open request."""
        tenant, level = self.parent, self.level
        assert tenant is not None
        # An inlined `level.virtual_s`; the level of tenants has no owner, so `top_s` is its `virtual_s`.
        top_s = tenant.level._virtual_s
        now_s = level._virtual_s + (top_s - level._owner_s) * tenant.weight / level.weight
        return (
            (self.used_until_s - now_s) * self.weight > LEAST_S,
            (tenant.used_until_s - top_s) * tenant.weight > LEAST_S,
        )

    def use(self, seconds: float) -> None:
        """Count `seconds` of engine time that the member used, before the virtual time advances by them."""
        now_s = self.level.virtual_s
        used_s = max(self.used_until_s, now_s) + seconds / self.weight
        self.used_until_s = min(used_s, now_s + (MAX_LAG_S + seconds) / self.weight)
        if self.parent is not None:
            self.parent.use(seconds)

    def progress(self, seconds: float) -> None:
        """Count `seconds` of progress of the member, after the virtual time advanced."""
        now_s = self.level.virtual_s
        lag_s = (now_s - self.progress_until_s) * self.weight - seconds
        self.progress_until_s = now_s - min(max(lag_s, 0.0), MAX_LAG_S) / self.weight

    def weigh(self, weight: float) -> None:
        """Change the weight. A lead keeps its seconds, which are virtual time times the weight."""
        if weight != self.weight:
            now_s = self.level.virtual_s
            self.used_until_s = now_s + (self.used_until_s - now_s) * self.weight / weight
            self.weight = weight

    def lag(self, seconds: float) -> None:
        """Set the lag of the member to `seconds`."""
        self.progress_until_s = self.level.virtual_s - seconds / self.weight


class Clients:
    """Some clients, by tenant."""

    __slots__ = ("_by_tenant", "all")

    def __init__(self, clients: Iterable[Member]) -> None:
        self.all = list(clients)
        self._by_tenant: dict[Member | None, int] = {}
        for client in self.all:
            self._by_tenant[client.parent] = self._by_tenant.get(client.parent, 0) + 1

    def has_rival(self, client: Member, leading: Leading) -> bool:
        """Whether one of them is a client that `client` has a lead over."""
        own, tenant = leading
        ours = self._by_tenant.get(client.parent, 0)
        if tenant and len(self.all) > ours:
            return True
        return own and ours > (client in self.all)


class TimeLevel:
    """Tenants, or the clients of one tenant."""

    __slots__ = (
        "_largest_weight", "_owner", "_owner_s", "_virtual_s", "active", "caught_up_s", "decoders", "idle", "late", "weight",
    )  # fmt: skip

    def __init__(self, owner: Member | None = None) -> None:
        self.active: dict[str, Member] = {}
        self.idle: dict[str, Member] = {}
        self.decoders: dict[Member, None] = {}
        """Members with a request that decodes."""
        self.late: dict[Member, None] = {}
        """Members with a request that decodes that are not `caught_up`."""
        self.caught_up_s = 0.0
        """`Member.progress_until_s` of the others: the virtual time after the last run."""
        self.weight = 0.0
        """Weight of all active members together."""
        self._largest_weight = 0.0
        """Largest weight of a member so far."""
        self._owner = owner
        self._virtual_s = 0.0
        self._owner_s = 0.0
        """Virtual time of the owner's level that `_virtual_s` includes."""

    @property
    def virtual_s(self) -> float:
        """Engine time for each unit of weight. A tenant's part of it advances this level."""
        owner = self._owner
        if owner is None or not self.active:
            return self._virtual_s
        passed_s = owner.level._virtual_s - self._owner_s
        return self._virtual_s + passed_s * owner.weight / self.weight

    @property
    def largest_share(self) -> float:
        """No active member has a larger part of this level's time."""
        return min(1.0, self._largest_weight / self.weight)

    def advance(self, seconds: float) -> None:
        """Engine time passed, at the level of tenants."""
        self._virtual_s += seconds / self.weight

    @property
    def rate(self) -> float:
        """Virtual time per second; some member is active."""
        return (
            1.0 if self._owner is None else self._owner.level.rate * self._owner.weight
        ) / self.weight

    # `min` and `max` are spelled out below: with hundreds of members these loops are most of what a decode step costs. Most members
    # have no lead and get none: these are found by one comparison. Most have no lag after a run, nor after the next one: these are
    # found by one comparison for all.

    def use_run(self, run: DecodeRun) -> None:
        """Members had their decoding requests in a run of decode steps, before the virtual time advances. As `Member.use` for each
        step: in a run a lead only grows or only shrinks. What all members have in common is computed once."""
        now_s, rate, seconds, batch, last_step_s = (
            self.virtual_s, self.rate, run.seconds, run.batch, run.last_s,
        )  # fmt: skip
        before_last_s = now_s + (seconds - last_step_s) * rate
        clearly_less = CLEARLY * rate * batch
        for member in self.decoders:
            weight = member.weight
            until_s = member.used_until_s
            if until_s < now_s and member.decoding < clearly_less * weight:
                continue  # less than its share: every time before the virtual time means no lead
            most_s = MAX_LAG_S / weight
            if until_s < now_s:
                until_s = now_s
            elif until_s > now_s + most_s:
                until_s = now_s + most_s
            part = member.decoding / batch / weight
            until_s += seconds * part
            last_s = before_last_s + last_step_s * part
            if until_s < last_s:
                until_s = last_s
            elif until_s > last_s + most_s:
                until_s = last_s + most_s
            member.used_until_s = until_s

    def progress_run(self, run: DecodeRun, isolation: float) -> None:
        """Clients made progress in a run, after the virtual time advanced. As `Member.progress` for each step: likewise."""
        now_s, steps, seconds, last_s = self.virtual_s, len(run.times), run.seconds, run.last_s
        fixed_s, slope = run.line
        least_s = min(run.least_s, fixed_s / isolation) if isolation else run.least_s
        clearly_s = CLEARLY * steps * least_s
        if (now_s - self.caught_up_s) * self._largest_weight >= clearly_s:
            for client in self.decoders:  # some may have a lag now: each has its own again
                client.progress_until_s = client.progress_until_s
        late, self.late, self.caught_up_s = self.late, {}, now_s
        for client in late:
            weight = client.weight
            lag_s = (now_s - client._progress_until_s) * weight
            if lag_s < clearly_s:
                lag_s = 0.0
            elif isolation:
                size = client.context_tokens + client.decoding * run.before
                size += REQUEST_TOKENS * client.running
                most_s = (fixed_s + slope * size) / isolation
                if most_s >= last_s:  # the longest step: no step is capped
                    lag_s -= seconds
                else:
                    lag_s -= run.progress_s(most_s, slope * client.decoding / isolation)
            else:
                lag_s -= seconds
            if lag_s <= 0.0:
                client.caught_up = True
                continue
            client._progress_until_s = now_s - min(lag_s, MAX_LAG_S) / weight
            self.late[client] = None

    def lagging(self) -> list[Member]:
        """Active clients with a lag. Call it at the level of tenants."""
        now_s, found = self._virtual_s, []
        for tenant in self.active.values():
            level = tenant.children
            # An inlined `level.virtual_s`, and `Member.progress_until_s`: there may be hundreds.
            passed_s, caught_up_s = now_s - level._owner_s, level.caught_up_s
            own_now_s = level._virtual_s + passed_s * tenant.weight / level.weight
            for member in level.active.values():
                until_s = caught_up_s if member.caught_up else member._progress_until_s
                if (own_now_s - until_s) * member.weight > LEAST_S:
                    found.append(member)
        return found

    def waiting(self) -> Iterator[tuple[Member, Leading]]:
        """Clients with a request that waits, and what each has a lead over (`Member.leading`). Call it at the level of
        tenants."""
        now_s = self._virtual_s
        for tenant in self.active.values():
            level = tenant.children
            passed_s = now_s - level._owner_s
            own_now_s = level._virtual_s + passed_s * tenant.weight / level.weight
            leads = (tenant.used_until_s - now_s) * tenant.weight > LEAST_S
            for member in level.active.values():
                if member.open > member.running:
                    own = (member.used_until_s - own_now_s) * member.weight > LEAST_S
                    yield member, (own, leads)

    def settle(self) -> None:
        """A weight, here or of the owner, is about to change."""
        self._virtual_s = self.virtual_s
        if self._owner is not None:
            self._owner_s = self._owner.level.virtual_s

    def join(self, name: str, weight: float, parent: Member | None = None) -> Member:
        """The member, with one more open request. The newest weight counts."""
        self._largest_weight = max(self._largest_weight, weight)
        member = self.active.get(name)
        if member is None:
            self.settle()
            member = self.idle.pop(name, None) or Member(self, parent)
            member.weigh(weight)
            self.weight += weight
            # While a member is idle, `progress_until_s` is minus its lag; see `leave`.
            member.lag(-member.progress_until_s)
            self.active[name] = member
        elif member.weight != weight:
            self.settle()
            member.children.settle()
            self.weight += weight - member.weight
            lag_s = member.lag_s
            member.weigh(weight)
            member.lag(lag_s)
        member.open += 1
        return member

    def leave(self, name: str) -> None:
        """One open request less."""
        member = self.active[name]
        member.open -= 1
        if member.open:
            return
        self.settle()
        member.progress_until_s = -member.lag_s
        del self.active[name]
        # Exactly 0 when the last one leaves: a rounding error would remain.
        self.weight = self.weight - member.weight if self.active else 0.0
        self.idle[name] = member
        if len(self.idle) > MAX_IDLE:
            del self.idle[next(iter(self.idle))]  # idle for longest
