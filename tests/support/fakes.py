"""Fakes at the router's one seam to the network: no sockets to replicas, no clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evenkeel_contract.routerconfig import ReplicaConfig
from evenkeel_router.fleet.probe import EngineSize, ProbeVerdict
from evenkeel_router.transport.upstream import (
    Exchange,
    Feed,
    IsOverdue,
    Outgoing,
    Passes,
    Reply,
    Sink,
    UpstreamError,
    never_overdue,
)


@dataclass
class FakeProber:
    """Says of each replica what it is told to; ready otherwise."""

    verdicts: dict[str, ProbeVerdict] = field(default_factory=dict)
    sizes: dict[str, EngineSize] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    asked_start: int = 0
    probes: int = 0

    async def probe(self, replica: ReplicaConfig) -> ProbeVerdict:
        self.probes += 1
        return self.verdicts.get(replica.name, ProbeVerdict.READY)

    def refusal(self, replica: ReplicaConfig) -> str:
        return ""

    async def size(self, replica: ReplicaConfig) -> EngineSize | None:
        return self.sizes.get(replica.name)

    async def started_s(self, replica: ReplicaConfig) -> float | None:
        self.asked_start += 1
        return self.started.get(replica.name)


def replicas(count: int) -> tuple[ReplicaConfig, ...]:
    """Replicas that nobody can connect to."""
    return tuple(ReplicaConfig(name=f"r{n}", url="http://127.0.0.1:1") for n in range(count))


@dataclass(slots=True)
class FakeReply:
    """Each part is a piece of the body, or an error to raise in its place."""

    parts: Sequence[bytes | UpstreamError]
    status: int = 200
    content_type: str = "application/json"
    retry_after: str = ""
    metadata: str = ""
    _position: int = 0
    _held: bool = False

    @property
    def body(self) -> bytes | None:
        if self.content_type.startswith("text/event-stream"):
            return None
        return b"".join(part for part in self.parts if isinstance(part, bytes))

    async def relay(self, feed: Feed, *, idle_s: float) -> bool:
        self._held = False
        while self._position < len(self.parts) and not self._held:
            part = self.parts[self._position]
            self._position += 1
            if isinstance(part, UpstreamError):
                raise part
            feed(part, self._position == len(self.parts))
        return not self._held

    def splice(self, passes: Passes, client: Sink) -> None:
        return None

    def begun(self) -> None:
        return None

    def hold(self) -> None:
        self._held = True


Answer = Callable[[ReplicaConfig, Outgoing], FakeReply | UpstreamError]


def headers_of(request: Outgoing) -> dict[str, str]:
    """The header lines of a request to a replica, by name."""
    lines = (line.partition(": ") for line in request.headers.splitlines())
    return {name: value for name, _, value in lines}


@dataclass(slots=True)
class FakeUpstream:
    """Replicas without sockets. `answer` decides what each request gets, and `asked` records all requests."""

    answer: Answer
    asked: list[tuple[str, Outgoing]] = field(default_factory=list)
    silences_s: list[float] = field(default_factory=list)
    """How long each request may go without an answer."""
    takes_s: float = 0.0
    """How long each answer takes."""
    takes_back: bool = False
    """Whether a replica drops a request that the router takes back."""
    closed: int = 0

    def pooled(self, replica: ReplicaConfig) -> Exchange | None:
        return None

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        return _FakeExchange(self, replica)


@dataclass(slots=True)
class _FakeExchange:
    upstream: FakeUpstream
    replica: ReplicaConfig

    async def ask(
        self, request: Outgoing, *, silence_s: float, is_overdue: IsOverdue = never_overdue
    ) -> Reply:
        self.upstream.asked.append((self.replica.name, request))
        self.upstream.silences_s.append(silence_s)
        await asyncio.sleep(self.upstream.takes_s)
        answer = self.upstream.answer(self.replica, request)
        if isinstance(answer, UpstreamError):
            raise answer
        return answer

    def break_off(self) -> bool:
        return self.upstream.takes_back

    def close(self) -> None:
        self.upstream.closed += 1
