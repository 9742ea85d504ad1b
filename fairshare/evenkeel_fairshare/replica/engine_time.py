"""The engine's time, divided among the clients whose requests run (design R13).

Prefill and decode share one engine, and engines prefill first. So a client with a few long prompts stops the decoding of all
others, whatever the order of the queue is. `EngineTime` measures this and says whose prefill has to wait.

Each client has two figures, in seconds of engine time:

    lead: what it used beyond its share. A prefill is used by its request, a decode step by all running requests alike.
    lag:  what it lacks of its share of progress. A client makes progress in its prefills and in the decode steps of its requests.

Prefill of a client with a lead waits while another client with a lag runs. The requests of that client use the engine meanwhile,
so no capacity is idle. Clients that take no more than their share have no lead and never wait. So together they leave every
client its share, up to one prefill.

A decode step counts as progress in full, however large the batch is: a larger batch serves more tokens per second. `isolation`
bounds that. At 0.5 a decode step counts for at most 1 / 0.5 times what the client's own requests alone would take. So a client
keeps at least this part of its share of its speed alone.

Tenants and clients have shares by weight, as in DLPM (R9). The shares are those of weighted fair queueing: the virtual time of a
level advances by elapsed time over the weight of its active members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from operator import itemgetter

from evenkeel_fairshare.replica.contract import Request
from evenkeel_fairshare.replica.time_levels import (
    CLEARLY,
    NOT_LEADING,
    REQUEST_TOKENS,
    Clients,
    DecodeRun,
    Leading,
    Line,
    Member,
    StepTimes,
    TimeLevel,
    step_size,
)


class EngineTime:
    """The account of one engine. The engine calls `open`, `starts`, `decodes`, `stops`, `close` as a request goes its way, and
    `elapsed` after each iteration. Deterministic: the same calls give the same answers."""

    def __init__(self, *, isolation: float = 0.0) -> None:
        """`isolation`: the part of its share of its speed alone that a client keeps beside a large batch; 0: no bound."""
        if not 0 <= isolation < inf:
            raise ValueError(f"isolation is {isolation}; it must be at least 0 and finite")
        self._isolation = isolation
        self._tenants = TimeLevel()
        self._step_times = StepTimes()
        self._running: dict[Member, None] = {}
        """Clients with a request in prefill or decode."""
        self._prefilling: dict[Request, int] = {}
        """Context tokens of each request in prefill."""
        self._decoding: dict[Request, int] = {}
        """Context tokens of each request that decodes, less the decode steps so far."""
        self._steps = 0
        """Decode steps so far."""
        self._context_tokens = 0
        """Context tokens of all requests that decode."""
        self._largest = 0
        """The most context tokens of a request since the engine was idle."""
        self._tolerated: list[tuple[float, Member]] | None = None
        """(longest decode step beside which it keeps its progress, client that runs), ascending; None: to be computed. For
        clients without a lag."""
        self._step: tuple[int, float, float, float] | None = None
        """(size, line) of a decode step of all requests in the batch, and the size below which every client tolerates it; None: to be
        computed."""
        self._lagging: Clients | None = None
        """Clients with a lag; None: to be computed."""
        self._protected_lagging: Clients | None = None
        """Clients with a lag for which others may have to wait now; None: to be computed."""

    def restarted(self) -> EngineTime:
        """A new account with the same settings."""
        return EngineTime(isolation=self._isolation)

    # The way of a request

    def open(self, request: Request) -> None:
        """A request arrived: its client becomes active."""
        self._largest = max(self._largest, _context_tokens(request))
        tenant = self._tenants.join(request.tenant, request.tenant_weight)
        tenant.children.join(request.client, request.client_weight, tenant)
        self._changed()

    def starts(self, request: Request) -> None:
        """A request enters its prefill."""
        client = self.client(request)
        tokens = _context_tokens(request)
        client.running += 1
        client.context_tokens += tokens
        self._running[client] = None
        self._prefilling[request] = tokens
        self._batch_changed()

    def decodes(self, request: Request) -> None:
        """The prefill of a request is complete, with its first token."""
        client = self.client(request)
        before, tokens = self._prefilling.pop(request), _context_tokens(request)
        client.decodes()
        _tenant_of(client).decodes()
        # Less the steps so far: then no decode step needs to update the sums of clients.
        client.context_tokens += tokens - self._steps - before
        self._decoding[request] = tokens - self._steps
        self._context_tokens += tokens
        self._batch_changed()

    def stops(self, request: Request) -> None:
        """A request leaves the batch, at its end or before."""
        client = self.client(request)
        if request in self._decoding:
            counted = self._decoding.pop(request)
            tokens = counted + self._steps
            client.stops_decoding()
            _tenant_of(client).stops_decoding()
            self._context_tokens -= tokens
        else:
            counted = tokens = self._prefilling.pop(request)
        self._largest = max(self._largest, tokens)
        client.running -= 1
        client.context_tokens -= counted
        if not client.running:
            del self._running[client]
        self._batch_changed()

    def close(self, request: Request) -> None:
        """A request ended; it had left the batch."""
        self._tenants.active[request.tenant].children.leave(request.client)
        self._tenants.leave(request.tenant)
        if not self._tenants.active:
            self._largest = 0
        self._changed()

    # The way of the engine

    def elapsed(self, seconds: float, *, prefilled: Mapping[Request, int], decoded: bool) -> None:
        """An iteration ended. `prefilled`: computed tokens by request; `decoded`: the batch produced a token each."""
        if decoded and not prefilled:
            self.decoded([seconds])
            return
        prefills: dict[Member, int] = {}
        for request, tokens in prefilled.items():
            client = self.client(request)
            prefills[client] = prefills.get(client, 0) + tokens
        decode_s = 0.0
        if decoded:
            step_s = self._step_times.predict(len(self._decoding), self._context_tokens)
            decode_s = min(seconds, step_s)
        second_per_token = (seconds - decode_s) / sum(prefills.values()) if prefills else 0.0
        progress = {client: tokens * second_per_token for client, tokens in prefills.items()}
        for client, used_s in progress.items():
            client.use(used_s)
        if decoded:
            line = self._step_times.line()
            for client in self._running:
                if client.decoding:
                    client.use(decode_s * client.decoding / len(self._decoding))
                    own_s = min(decode_s, self._most_progress_s(client, line))
                    progress[client] = progress.get(client, 0.0) + own_s
            self._steps += 1
            self._context_tokens += len(self._decoding)
        # Between `use` and `progress`: they count from the virtual time before and after the iteration.
        if self._tenants.active:
            self._tenants.advance(seconds)
        for client, own_s in progress.items():
            client.progress(own_s)
        self._changed()

    def decoded(self, times: Sequence[float]) -> None:
        """Decode steps without a prefill ended, `times` seconds each, of the same requests."""
        batch = len(self._decoding)
        self._step_times.observe(batch, self._context_tokens, times)
        run = DecodeRun(times, before=self._steps, batch=batch, line=self._step_times.line())
        self._context_tokens += batch * len(times)
        self._steps += len(times)
        for tenant in self._tenants.decoders:
            tenant.children.use_run(run)
        self._tenants.use_run(run)
        self._tenants.advance(run.seconds)
        for tenant in self._tenants.decoders:
            tenant.children.progress_run(run, self._isolation)
        self._changed()

    def must_wait(self, request: Request) -> bool:
        """Whether prefill of a request has to wait now, while requests of other clients use the engine."""
        client = self.client(request)
        leading = client.leading
        return leading != NOT_LEADING and self.holds_up(request, client, leading)

    def holds_up(self, request: Request, client: Member, leading: Leading) -> bool:
        """Whether prefill of a request of `client` would hold up one that runs, and that `client` has a lead over."""
        if self._protected_lagging is None:
            self._protected_lagging = Clients(self._protected(self.lagging().all))
        return self._protected_lagging.has_rival(client, leading) or (
            self._isolation > 0 and self._makes_steps_too_long(request, client, leading)
        )

    def lagging(self) -> Clients:
        """The clients with a lag. Each of them goes before a client with a lead over it, if one of its requests can be admitted: that
        one may wait in the queue."""
        if self._lagging is None:
            self._lagging = Clients(self._tenants.lagging())
        return self._lagging

    def all_yield(self) -> bool:
        """Whether every request that waits in the queue has to yield or to wait; may be False although it is so."""
        if self._isolation:
            fixed_s, slope = self._step_times.line()
            size = self._batch_size() + step_size(1, self._largest)
            if fixed_s + slope * size >= fixed_s / self._isolation:
                return False
        lagging = self.lagging()
        return all(lagging.has_rival(client, leads) for client, leads in self._tenants.waiting())

    def should_wait(self, request: Request) -> bool:
        """Whether it is not its turn: it has to wait, or a client with a lag goes first."""
        client = self.client(request)
        return self.lagging().has_rival(client, client.leading) or self.must_wait(request)

    def _makes_steps_too_long(self, request: Request, client: Member, leading: Leading) -> bool:
        """Whether beside the request decode steps take longer than a rival of its client tolerates."""
        if self._step is None:
            fixed_s, slope = self._step_times.line()
            level = client.level if len(self._tenants.active) == 1 else self._tenants
            clearly_s = CLEARLY * fixed_s / self._isolation / level.largest_share - fixed_s
            clear_size = clearly_s / slope if slope else (inf if clearly_s > 0.0 else 0.0)
            self._step = (self._batch_size(), fixed_s, slope, clear_size)
        size, fixed_s, slope, clear_size = self._step
        if request not in self._prefilling:
            size += step_size(1, _context_tokens(request))
        if size < clear_size:
            return False  # shorter than what any client tolerates, and most are
        step_s = fixed_s + slope * size
        longest_s = self._longest_step_s(client, leading)
        return longest_s == 0.0 or step_s > longest_s

    def lags(self, request: Request) -> bool:
        """Whether the client of a request has a lag."""
        return self.client(request).lags

    def in_prefill(self, request: Request) -> bool:
        """Whether it is in the batch and its prefill is not complete."""
        return request in self._prefilling

    def client(self, request: Request) -> Member:
        """The client of an open request."""
        return self._tenants.active[request.tenant].children.active[request.client]

    def _longest_step_s(self, client: Member, leading: Leading) -> float:
        """The longest decode step beside which the rivals of a client keep their progress."""
        if self._tolerated is None:
            self._tolerated = sorted(self._tolerances(), key=itemgetter(0))
        own, tenant = leading
        for longest_s, other in self._tolerated:
            if other is not client and (own if other.parent is client.parent else tenant):
                return longest_s
        return inf

    def _tolerances(self) -> Iterator[tuple[float, Member]]:
        # Inlined `_most_progress_s` and `Member.share`: there may be hundreds of clients.
        fixed_s, slope = self._step_times.line()
        tenant, tenant_share = None, 0.0
        for client in self._protected(self._running):
            if client.parent is not tenant:
                tenant = _tenant_of(client)
                tenant_share = tenant.share
            size = client.context_tokens + client.decoding * self._steps
            size += REQUEST_TOKENS * client.running
            most_s = (fixed_s + slope * size) / self._isolation
            yield most_s / (client.weight / client.level.weight * tenant_share), client

    def _batch_size(self) -> int:
        """The size of a decode step of all requests in the batch."""
        return step_size(
            len(self._decoding) + len(self._prefilling),
            self._context_tokens + sum(self._prefilling.values()),
        )

    @staticmethod
    def _protected(clients: Iterable[Member]) -> Iterator[Member]:
        """Clients for which others may have to wait. They run, and they need not wait themselves: else two clients in prefill
        would wait for each other."""
        return (
            one for one in clients if one.decoding or (one.running and one.leading == NOT_LEADING)
        )

    def _most_progress_s(self, client: Member, line: Line) -> float:
        """The progress that a decode step may count for."""
        if not self._isolation:
            return inf
        fixed_s, slope = line
        context_tokens = client.context_tokens + client.decoding * self._steps
        size = step_size(client.running, context_tokens)
        return (fixed_s + slope * size) / self._isolation

    def _changed(self) -> None:
        self._lagging = None
        self._batch_changed()

    def _batch_changed(self) -> None:
        self._tolerated = self._protected_lagging = self._step = None


def _tenant_of(client: Member) -> Member:
    assert client.parent is not None
    return client.parent


def _context_tokens(request: Request) -> int:
    return request.input_tokens + request.output_tokens


class PassTurns:
    """Turns of prefills in a pass of admissions: some wait for decode steps (R13). Without an `EngineTime` none does."""

    def __init__(self, time: EngineTime | None) -> None:
        self._time = time
        self._yielding = False
        self._chunk: Request | None = None
        self._lagging: Clients | None = None
        """Clients to which clients with a lead yield in this pass; None: to be computed."""
        self._went = False
        """Whether a request need not wait, so far in this pass."""
        self._waits: dict[str, bool] = {}
        """Clients of which no other request needs a look in this pass: there may be thousands. Whether they have to wait."""
        self._yielded: list[Request] = []
        """The request that was asked for, of each client that yields in this pass."""

    def begin(self, *, chunk: Request | None = None) -> None:
        """A pass in which clients with a lead yield to clients with a lag that wait; see `must_repeat`. `chunk`: a prompt whose next
        chunk follows if no request enters. So clients with a lead yield in any case, but not to the client of that prompt. It may have
        a lag too, but its chunk waits in this pass."""
        self._yielding, self._went = self._time is not None, False
        self._chunk, self._lagging = chunk, None
        self._waits.clear()
        self._yielded.clear()

    def must_wait(self, request: Request) -> bool:
        """Whether prefill of a request has to wait in this pass."""
        if self._time is None:
            return False
        waits = self._waits.get(request.client)
        return self._look(self._time, request) if waits is None else waits

    def _look(self, time: EngineTime, request: Request) -> bool:
        client = time.client(request)
        leading = client.leading
        if leading == NOT_LEADING:
            self._waits[request.client] = False
            self._went = True
            return False
        if self._yielding and self._goes_after(client, leading, time):
            if self._chunk or self._went or self._yielded or not time.all_yield():
                self._waits[request.client] = True
                self._yielded.append(request)
                return True
            # This pass would admit none: it becomes the one that would follow.
            self._yielding = False
        if time.holds_up(request, client, leading):
            self._waits[request.client] = True
            return True
        self._went = True
        return False

    def _goes_after(self, client: Member, leading: Leading, time: EngineTime) -> bool:
        if self._lagging is None:
            self._lagging = time.lagging()
            if self._chunk is not None:
                owner = time.client(self._chunk)
                self._lagging = Clients(one for one in self._lagging.all if one is not owner)
        return self._lagging.has_rival(client, leading)

    def must_repeat(self, admitted: Iterable[Request]) -> bool:
        """The pass ended. Whether another one has to follow in which no client yields: one did that need not wait, and no client with
        a lag entered."""
        self._yielding = False
        if self._time is None or self._chunk or not self._yielded:
            return False
        for request in self._yielded:
            del self._waits[request.client]
        if any(map(self._time.lags, admitted)):
            return False
        return not all(map(self._time.must_wait, self._yielded))
