"""The gate of one replica: its waiting requests, and which of them go to the engine next (R12).

    arrive → queue (the policy's) → admit, while a window has room → begun → progress … → leave

The policy is the one that an engine with the plug-in runs, with the same calls. The router stands for the engine: it predicts
extend tokens from its prefix index, counts output by a stream's events, and corrects both by the usage that the engine reports.
The match of a request is that of its selection; it does not change while the request waits.

A gate is that of one process of the replica. Its successor starts from the seeds of the ledger (R5).

Where the engine reports its queue, its figures bound the requests at it (`EngineLimit`), and latency does not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple

from evenkeel_fairshare.cost import Cost
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_fairshare.ledger import Weights, tenant_of
from evenkeel_fairshare.replica.contract import AdmissionResult, ClientDeficits, ReplicaPolicy

from evenkeel_router.gate.engine_load import QUEUE, EngineLoad
from evenkeel_router.gate.engine_room import EngineRoom, Spare
from evenkeel_router.gate.prompts import Prompts
from evenkeel_router.gate.sharing import AtGates, Sharing
from evenkeel_router.gate.window import STREAMED, WHOLE, GatedRequest, Window


class Held(NamedTuple):
    """What one client has at a gate and at its replica."""

    service: float
    """Service for the output of requests that run, weighted tokens."""
    state: tuple[float, float, float, float, float, float]
    """deficit, seed, waiting, running, tenant_deficit, tenant_seed: as in `ReplicaRow`."""


SPARE_S: Final = 0.5
"""How long a request waits before it may use the spare place: it would wait at the engine, too."""
_NO_STATE: Final = ClientDeficits(0.0, 0.0, 0)
NOTHING_HELD: Final = Held(0.0, (0.0, 0.0, 0.0, 0.0, 0.0, 0.0))


class Gate:
    """Deterministic; times are passed in, seconds of one clock."""

    def __init__(self, policy: ReplicaPolicy, sharing: Sharing, spare: Spare | None = None) -> None:
        """`sharing`: with other routers. Until it has news of them, this router uses the replica as if it were alone. `spare`: of all
        gates of the router."""
        self.policy = policy
        self.sharing = sharing
        self.streamed = Window(STREAMED)
        self.whole = Window(WHOLE)
        self.prompts = Prompts()
        self.room = EngineRoom(sharing, spare or Spare())
        self.engine = self.room.engine
        self.clients: Counter[str] = Counter()
        """Sequences of the requests that wait, by client. No zeros."""
        self._waiting_streamed = 0
        self.sent: dict[GatedRequest, None] = {}
        """Requests at the replica."""
        self.admitted: Counter[str] = Counter()
        """Sequences of the requests that went to the replica since they were last published, by client."""
        self._passed: dict[GatedRequest, int] = {}
        """Request of several sequences that was refused → sequences that went to the replica since."""
        self._held_up: GatedRequest | None = None
        """A request of several sequences for which the engine had no room; no other one goes before it for good."""
        self._reserves = False
        """Whether no other request goes to the engine before `_held_up`."""

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self.policy)

    @property
    def at_engine(self) -> int:
        """Sequences of the requests at the replica."""
        return self.room.count

    @property
    def unanswered(self) -> int:
        """Sequences at the replica that have not begun, as far as the router sees."""
        return len(self.streamed) + len(self.whole)

    @property
    def limit(self) -> int:
        """Streamed requests of all routers that may be at the replica without having begun."""
        if self.engine.load is None:
            return int(self.streamed.limit)
        return int(self.engine.unanswered)

    @property
    def has_work(self) -> bool:
        """Whether a request waits for a window that has room."""
        if not self.clients or not self.engine_has_room or self.is_held:
            return False
        waiting = len(self.policy)
        streamed = self._waiting_streamed
        return (streamed > 0 and self._has_room_for_next(streams=True)) or (
            waiting > streamed and self._has_room_for_next(streams=False)
        )

    @property
    def calls(self) -> bool:
        """Whether a request that waits elsewhere may go to the replica now."""
        if not self.engine_has_room or not self.room.is_known(1) or (self.clients and self.is_held):
            return False
        return self._has_room_for_next(streams=True) or self._has_room_for_next(streams=False)

    def _has_room_for_next(self, *, streams: bool) -> bool:
        """Whether the window has room: for the request that it is reserved for, else for one of a single sequence."""
        reserved = self._window(streams=streams).reserved
        return self._has_room(streams=streams, sequences=reserved.sequences if reserved else 1)

    def would_send(self, request: GatedRequest) -> bool:
        """Whether the request could go to the replica at once if it came here and no other one went before it."""
        held = self.sharing.holds([request.client])
        takes = self.room.takes(request.sequences) and self.room.is_known(request.sequences)
        return not held and takes and self._takes(request)

    @property
    def engine_has_room(self) -> bool:
        """Whether the engine takes more, by its own figures; True where it has none."""
        held_up = self._held_up
        return self.room.takes(held_up.sequences if held_up and self._reserves else 1)

    @property
    def is_held(self) -> bool:
        """Whether a client that waits at another router goes before all that wait here."""
        return self.sharing.holds(self.clients)

    def worth_s(self, request: GatedRequest) -> float:
        """Time in which the replica would compute the request's cached prefix, as far as its pace is known."""
        return request.matched_tokens * self.streamed.best_pace if request.matched_tokens else 0.0

    def read(self, load: EngineLoad | None, now_s: float) -> None:
        """Take the engine's own figures; None: it does not give any."""
        if load is None:
            self.engine.lost()
            return
        held_up = len(self.policy) > 0 and (self._held_up is not None or not self.engine_has_room)
        streams_held_up = self._waiting_streamed > 0 and not self._window_has_room(streams=True)
        if not load.waiting:
            self.prompts.none_waits(now_s)
        if load.waiting > QUEUE:
            self.streamed.queue_is_long()
        self.room.read(
            load,
            unanswered=self.unanswered,
            held_up=held_up,
            streams_held_up=streams_held_up,
            waits=bool(self.clients),
        )

    def share(self, at: AtGates, weights: Weights, *, running_elsewhere: float = 0.0) -> None:
        """Take news of all gates of this replica. `running_elsewhere`: requests of the other routers there."""
        self.room.published_elsewhere = running_elsewhere
        elsewhere = self.sharing.update(at, weights, quantum=self.policy.quantum)
        for client, service in elsewhere.items():
            self.policy.served_elsewhere(client, tenant_of(client), service)
        self._use_part()

    def _waits_alone(self, request: GatedRequest) -> None:
        self.sharing.divide({request.client: 1.0})
        self._use_part()

    def _use_part(self) -> None:
        self.streamed.part = self.whole.part = self.prompts.part = self.sharing.part

    def enter(self, request: GatedRequest, now_s: float) -> bool:
        """A request comes. Whether it goes to the replica at once; otherwise it waits here."""
        self.prompts.expire(now_s)
        if not self.clients:
            self._waits_alone(request)
            if self.would_send(request):
                request.extend_tokens = request.uncached_tokens
                if self.policy.admit_alone(request, now_s):
                    self._sent(request, now_s)
                    return True
        self.arrive(request, now_s)
        return False

    def arrive(self, request: GatedRequest, now_s: float) -> None:
        """A request waits here."""
        if not self.clients:
            self.room.starved = 0
            self._waits_alone(request)
        self.policy.arrive(request, now_s)
        self.clients[request.client] += request.sequences
        self._waiting_streamed += request.streams

    def admit(self, now_s: float) -> list[GatedRequest]:
        """The requests that go to the replica now, in this order."""
        admitted: list[GatedRequest] = []
        self.prompts.expire(now_s)
        if not self.has_work:
            return admitted
        admissions = self.policy.admissions(now_s)
        proposed = next(admissions, None)
        while isinstance(proposed, GatedRequest):
            answer = self._answer(proposed, now_s)
            if answer is AdmissionResult.ADMITTED:
                admitted.append(proposed)
            try:
                proposed = admissions.send(answer)
            except StopIteration:
                break
            if not self.has_work:
                break
        admissions.close()
        return admitted

    def send_outside(self, request: GatedRequest) -> None:
        """A request goes to the replica on a place of another router, or one of another router on a place that is owed to it: without
        an account here."""
        request.is_outside = True
        request.extend_tokens = request.uncached_tokens
        self.sent[request] = None
        self.room.went(request)
        if not request.lent:
            self.admitted[request.client] += request.sequences

    def begun(self, request: GatedRequest, now_s: float, *, output_tokens: int = 0) -> None:
        """The first of an answer came. `output_tokens`: of a whole answer."""
        self.prompts.begun(request, now_s)
        self._window(streams=request.streams).begun(
            request, now_s, output_tokens=output_tokens, others_wait=len(self.policy) > 0
        )

    def progress(self, request: GatedRequest, output_tokens: int) -> None:
        """A request at the replica has produced so many output tokens in all: charge those that are new."""
        new = output_tokens - request.output_tokens
        if new <= 0:
            return
        request.output_tokens = output_tokens
        due = request.due_tokens(new)
        if due > 0 and not request.is_outside:
            self.policy.progress(request, due)

    def leave(self, request: GatedRequest, now_s: float, usage: Usage | None) -> None:
        """A request ended, waiting or at the replica.

        `usage`: what it used; None if that is unknown, and then its charge stands. Nothing: the replica computed nothing for it.
        """
        if request in self.sent:
            del self.sent[request]
            self.room.left(request)
            if request.is_outside:
                return
            if not request.lent:
                self._window(streams=request.streams).left(request)
                self.prompts.left(request)
            if usage is not None:
                extend_tokens = max(0, usage.input_tokens - usage.cached_tokens)
                self.policy.corrected(
                    request, extend_tokens=extend_tokens, output_tokens=usage.output_tokens
                )
        else:
            self._waits_no_more(request)
        self.policy.leave(request, now_s)

    def held(self, cost: Cost) -> dict[str, Held]:
        """Client → what it holds, of all with a request or a deficit here. Policies without accounts know no clients."""
        running: Counter[str] = Counter()
        service: defaultdict[str, float] = defaultdict(float)
        for request in self.sent:
            if request.lent:
                continue  # the other router publishes it
            running[request.client] += request.sequences
            paid, output = request.paid_output_tokens, request.output_tokens
            if output > paid:
                service[request.client] += cost.output_cost(request.extend_tokens, paid, output)
        states = self.policy.clients()
        held = {}
        for client in dict.fromkeys((*states, *running, *self.clients)):
            one = states.get(client, _NO_STATE)
            deficits = one.deficit, one.seed
            requests = float(self.clients[client]), float(running[client])
            state = (*deficits, *requests, one.tenant_deficit, one.tenant_seed)
            held[client] = Held(service[client], state)
        return held

    def waiting(self) -> Collection[GatedRequest]:
        """The requests that wait, in any order."""
        return [one for one in self.policy.waiting() if isinstance(one, GatedRequest)]

    def _answer(self, request: GatedRequest, now_s: float) -> AdmissionResult:
        held_up = self._held_up
        if self._reserves and held_up is not request:
            return AdmissionResult.LATER  # until the other one is proposed
        if not self.room.takes(request.sequences):
            return self._wait_for_engine(request)
        if not self.room.is_known(request.sequences) and self._waits_beside_others(request):
            return AdmissionResult.NO_ROOM  # it would wait at the engine
        if now_s - request.arrival_s < SPARE_S and self.room.uses_spare(request.sequences):
            return AdmissionResult.NO_ROOM
        if not self._takes(request):
            if request.sequences > 1 and self._was_passed(request):
                window = self._window(streams=request.streams)
                window.reserved = window.reserved or request
            # `LATER`: the other window has room, or others fit.
            fits_one = self._has_room(streams=request.streams) and request.sequences == 1
            return AdmissionResult.NO_ROOM if fits_one else AdmissionResult.LATER
        request.extend_tokens = request.uncached_tokens
        self._waits_no_more(request)
        self._sent(request, now_s)
        return AdmissionResult.ADMITTED

    def _waits_beside_others(self, request: GatedRequest) -> bool:
        """Whether its client has nothing else waiting here, and another client has."""
        alone = self.clients[request.client] <= request.sequences
        return alone and len(self.policy) > len(self.clients)

    def _wait_for_engine(self, request: GatedRequest) -> AdmissionResult:
        """The engine has no room for all sequences of a request: others go before it, up to as many as it has."""
        if request.sequences == 1:
            return AdmissionResult.NO_ROOM
        self._held_up = self._held_up or request
        if self._held_up is not request or not self._was_passed(request):
            return AdmissionResult.LATER
        self._reserves = True
        return AdmissionResult.NO_ROOM

    def _was_passed(self, request: GatedRequest) -> bool:
        """Whether others had as many sequences as a request, since it was refused first."""
        return self._passed.setdefault(request, 0) >= request.sequences

    def _sent(self, request: GatedRequest, now_s: float) -> None:
        self.room.went(request)
        self.sent[request] = None
        if request.lent:
            return
        for one in self._passed:
            self._passed[one] += request.sequences
        self.admitted[request.client] += request.sequences
        (self.streamed if request.streams else self.whole).sent(request, now_s)
        self.prompts.sent(request, now_s, min(self.streamed.best_pace, self.whole.best_pace))

    def _waits_no_more(self, request: GatedRequest) -> None:
        self._waiting_streamed -= request.streams
        self.clients[request.client] -= request.sequences
        if not self.clients[request.client]:
            del self.clients[request.client]
        if request.sequences > 1:
            window = self._window(streams=request.streams)
            if window.reserved is request:
                window.reserved = None
            if self._held_up is request:
                self._held_up, self._reserves = None, False
            self._passed.pop(request, None)

    def _takes(self, request: GatedRequest) -> bool:
        window = self._window(streams=request.streams)
        if window.reserved is not None and window.reserved is not request:
            return False
        has_room = self._has_room(streams=request.streams, sequences=request.sequences)
        return has_room and not (request.streams and self.streamed.would_overtake(request))

    def _has_room(self, *, streams: bool, sequences: int = 1) -> bool:
        return self.prompts.has_room and self._window_has_room(streams=streams, sequences=sequences)

    def _window_has_room(self, *, streams: bool, sequences: int = 1) -> bool:
        window = self._window(streams=streams)
        if self.engine.load is None:
            return window.takes(window.limit, sequences)
        return not streams or window.takes(self.engine.unanswered, sequences)

    def _window(self, *, streams: bool) -> Window:
        return self.streamed if streams else self.whole
