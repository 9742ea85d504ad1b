"""The gates of one router: which replicas have one, and the tasks that wait at them (R12).

A request takes its turn after its selection. It leaves the queue in one of four ways: it is admitted; its replica can take no
more requests, and it goes back to selection; its time is over; or its client left. `Turn.leave` ends each of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import RouterConfig, SchedulingConfig
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_fairshare.replica.contract import ReplicaPolicy
from evenkeel_fairshare.replica.deficit import DeficitRules, Rejoin
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy

from evenkeel_router.api.identity import Client, Paid
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.fleet.selection import Member, Ticket
from evenkeel_router.gate.gate import Gate
from evenkeel_router.gate.window import GatedRequest
from evenkeel_router.ledger.service_ledger import cost_of
from evenkeel_router.settings import Settings


class Produced(Protocol):
    """The scan of a stream."""

    events: int
    """Events with content so far, which is about the number of output tokens."""


@dataclass(slots=True, eq=False)
class _Place:
    """The gate of one replica, and the requests there."""

    gate: Gate
    life: int
    """Of the process that the windows are about (`Member.lives`)."""
    turns: dict[GatedRequest, Turn] = field(default_factory=dict)


class Turn:
    """One request at one gate, from its selection to its end there."""

    __slots__ = ("_gates", "admitted", "place", "produced", "request")

    def __init__(self, gates: Gates, place: _Place, request: GatedRequest) -> None:
        self._gates = gates
        self.place = place
        self.request = request
        self.admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """True: go to the replica. False: the replica takes no more requests."""
        self.produced: Produced | None = None
        """Set while the answer is streamed."""

    async def admission(self, timeout_s: float) -> bool:
        """Wait for admission; raises `TimeoutError`. False: another replica must be selected."""
        if self.admitted.done():
            return self.admitted.result()
        async with asyncio.timeout(timeout_s):
            return await self.admitted

    def begun(self, usage: Usage | None) -> None:
        """The client is sent the first of the answer. `usage`: of a whole answer; None for a stream."""
        output_tokens = 0 if usage is None or self.request.streams else usage.output_tokens
        self._gates.begun(self, output_tokens)

    def leave(self, usage: Usage | None) -> None:
        """The request is over at this replica; does nothing the second time. `usage`: see `Gate.leave`."""
        if self.place.turns.pop(self.request, None) is not None:
            self._gates.left(self, usage)


class Gates:
    """The gates by replica."""

    def __init__(self, settings: Settings, replicas: Replicas) -> None:
        self._settings = settings
        self._replicas = replicas
        self._places: dict[str, _Place] = {}
        self._numbers = count()
        replicas.fleet.withdrawn = self.withdrawn

    def gate(self, replica: str) -> Gate | None:
        """The gate of a replica, if a request ever waited there."""
        place = self._places.get(replica)
        return None if place is None else place.gate

    def __len__(self) -> int:
        """Requests that wait at all gates."""
        return sum(len(place.gate) for place in self._places.values())

    def enter(
        self, ticket: Ticket, client: Client, *, streams: bool, max_output_tokens: int, paid: Paid
    ) -> Turn | None:
        """A request was selected for a replica: it waits there. None: the engine orders its queue.

        `paid`: what replicas charged for it before (R11).
        """
        if not self._orders(ticket.member.name):
            return None
        now_s = asyncio.get_running_loop().time()
        request = GatedRequest(
            id=str(next(self._numbers)),
            client=client.identity,
            tenant=client.tenant_identity,
            arrival_s=now_s,
            input_tokens=ticket.match.dispatch.input_tokens,
            max_output_tokens=max_output_tokens,
            client_weight=client.client_weight,
            tenant_weight=client.tenant_weight,
            charge_input=not paid.input,
            paid_output_tokens=paid.output_tokens,
            matched_tokens=ticket.prediction.cached_tokens,
            streams=streams,
        )
        place = self._place(ticket)
        turn = place.turns[request] = Turn(self, place, request)
        place.gate.arrive(request, now_s)
        self._admit(place)
        return turn

    def begun(self, turn: Turn, output_tokens: int) -> None:
        """A request's answer begins: the window may have room."""
        now_s = asyncio.get_running_loop().time()
        turn.place.gate.begun(turn.request, now_s, output_tokens=output_tokens)
        self._admit(turn.place)

    def left(self, turn: Turn, usage: Usage | None) -> None:
        """A request is over: the window may have room."""
        turn.place.gate.leave(turn.request, asyncio.get_running_loop().time(), usage)
        self._admit(turn.place)

    def withdrawn(self, member: Member) -> None:
        """A replica takes no new requests: those that wait for it select another one."""
        place = self._places.get(member.name)
        if place is not None:
            _send_away(place)

    def apply(self, config: RouterConfig, before: RouterConfig) -> None:
        """Use a changed configuration: a gate with other rules starts from zero, and its requests select again."""
        if config.scheduling != before.scheduling:
            places, self._places = self._places, {}
            for place in places.values():
                _send_away(place)

    def _orders(self, replica: str) -> bool:
        queue = self._settings.config.scheduling.queue
        if queue is QueueOwner.AUTO:
            configured = self._replicas.configured.get(replica)
            return configured is not None and configured.reports is None
        return queue is QueueOwner.ROUTER

    def _place(self, ticket: Ticket) -> _Place:
        name, life = ticket.member.name, ticket.life
        place = self._places.get(name)
        if place is None:
            known = self._replicas.fleet.member
            self._places = {name: one for name, one in self._places.items() if known(name)}
            gate = Gate(policy_of(self._settings.config.scheduling))
            place = self._places[name] = _Place(gate, life)
        elif place.life != life:
            place.life = life
            place.gate.restarted()
        return place

    def _admit(self, place: _Place) -> None:
        gate = place.gate
        if not gate.has_work:
            return
        for request in gate.sent:
            turn = place.turns.get(request)
            if turn is not None and turn.produced is not None:
                gate.progress(request, turn.produced.events)
        for request in gate.admit(asyncio.get_running_loop().time()):
            admitted = place.turns[request].admitted
            if not admitted.done():  # else its client has just left
                admitted.set_result(True)


def _send_away(place: _Place) -> None:
    for request in place.gate.waiting():
        admitted = place.turns[request].admitted
        if not admitted.done():
            admitted.set_result(False)


def policy_of(scheduling: SchedulingConfig) -> ReplicaPolicy:
    """The policy of a gate, from zero."""
    deficits = DeficitRules(
        quantum=scheduling.client_quantum, rejoin=Rejoin(scheduling.rejoin.value)
    )
    config = ReplicaPolicyConfig(cost=cost_of(scheduling), deficits=deficits)
    return make_policy(scheduling.replica_policy.value, config)
