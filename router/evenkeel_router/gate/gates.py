"""The gates of one router: which replicas have one, and the tasks that wait at them (R12).

A request takes its turn after its selection. It leaves the queue in one of four ways: it is admitted; it goes back to selection,
because its replica can take no more requests or another one is idle; its time is over; or its client left. `Turn.leave` ends each.

Late binding: a place that becomes free also calls requests that wait at other gates (`waiters`), if they have waited longer than their
cached prefixes would take to compute here. So a request waits for its cache no longer than the cache is worth. It arrives here as a
guest, and the policy of this gate decides as if it had been selected for this replica. If it is admitted, it is selected again, for this
replica, and has its turn here already. Otherwise it leaves this gate, and waits where it was.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import Final
from zlib import crc32

from evenkeel_contract.queueorder import DEFAULT_ORDER
from evenkeel_contract.routerconfig import RouterConfig, SchedulingConfig
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from evenkeel_fairshare.ledger import ReplicaRow
from evenkeel_fairshare.ledger.replica_rows import WAITING
from evenkeel_fairshare.replica.contract import ReplicaPolicy, UnchargedPolicy
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.order import ORDERS
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy

from evenkeel_router.api.identity import Client, Paid
from evenkeel_router.fleet.member import Member
from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.fleet.selection import Ticket
from evenkeel_router.gate.calls import Calls
from evenkeel_router.gate.engine_load import EngineLoad
from evenkeel_router.gate.engine_room import Spare
from evenkeel_router.gate.gate import NOTHING_HELD, Gate
from evenkeel_router.gate.sharing import ClientAtGate, Sharing
from evenkeel_router.gate.turns import Place, Turn
from evenkeel_router.gate.waiters import Waiters
from evenkeel_router.gate.window import GatedRequest
from evenkeel_router.ledger.accounting import SEEDED_POLICY
from evenkeel_router.ledger.service_ledger import ServiceLedger, cost_of
from evenkeel_router.settings import Settings

OFFERS: Final = 8
"""Gates that a new request looks at, if it must wait."""


class Gates:
    """The gates by replica."""

    def __init__(
        self, settings: Settings, replicas: Replicas, service_ledger: ServiceLedger
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._service_ledger = service_ledger
        self._places: dict[str, Place] = {}
        self._numbers = count()
        self._ring: deque[Place] = deque()
        """All places, in rotation."""
        self._calls = Calls(replicas, service_ledger, self._numbers)
        self._waiting: Final = self._calls.waiting
        self.foreign: Final = self._calls.foreign
        self._spare = Spare()
        self.moved = 0
        """Requests that left a gate for a free place at another replica."""
        replicas.fleet.withdrawn = self.withdrawn

    def gate(self, replica: str) -> Gate | None:
        """The gate of a replica, if a request ever waited there."""
        place = self._places.get(replica)
        return None if place is None else place.gate

    @property
    def waiters(self) -> Waiters[Turn]:
        """The requests that wait at all gates, by client."""
        return self._waiting

    def __len__(self) -> int:
        """Requests that wait at all gates."""
        return sum(len(place.gate) for place in self._places.values())

    @property
    def waiting(self) -> int:
        """Sequences of the requests that wait at all gates."""
        return sum(place.gate.clients.total() for place in self._places.values())

    def enter(
        self,
        ticket: Ticket,
        client: Client,
        *,
        streams: bool,
        max_output_tokens: int,
        paid: Paid,
        sequences: int = 1,
        called: Turn | None = None,
    ) -> Turn:
        """A request was selected for a replica whose queue is ordered here: it waits there.

        `paid`: what replicas charged for it before (R11). `called`: the turn that it has already, if that replica called it.
        """
        if called is not None:
            if called.place is self._places.get(ticket.member.name) and called.place.slot == ticket.slot:  # fmt: skip
                return called
            called.leave(NOTHING)
        now_s = asyncio.get_running_loop().time()
        place = self._place(ticket.member, ticket.slot)
        seed = self._service_ledger.accounting.seed(client, place.incarnation, now_s=now_s)
        request = GatedRequest(
            id=str(next(self._numbers)),
            client=client.identity,
            tenant=client.tenant_identity,
            arrival_s=now_s,
            input_tokens=ticket.match.dispatch.input_tokens,
            max_output_tokens=max_output_tokens,
            client_weight=client.client_weight,
            tenant_weight=client.tenant_weight,
            seed=seed.client,
            tenant_seed=seed.tenant,
            charge_input=not paid.input,
            paid_output_tokens=paid.output_tokens,
            matched_tokens=ticket.prediction.cached_tokens,
            # Of several sequences the first event shows the beginning of one.
            streams=streams and sequences == 1,
            sequences=sequences,
        )
        turn = place.turns[request] = Turn(self, place, request)
        if not place.gate.enter(request, now_s):
            turn.admitted = asyncio.get_running_loop().create_future()
            turn.ticket, turn.client = ticket, client
            self._waiting.add(turn)
            self._admit(place)
            if turn.waits:
                self._offer()
        return turn

    def decided(self, turn: Turn) -> None:
        """A request waits no more."""
        self._waiting.remove(turn)

    def begun(self, turn: Turn, output_tokens: int) -> None:
        """A request's answer begins: the window may have room."""
        now_s = asyncio.get_running_loop().time()
        place = turn.place
        place.gate.begun(turn.request, now_s, output_tokens=output_tokens)
        if place.gate.clients or self._waiting:
            self._admit(place)

    def left(self, turn: Turn, usage: Usage | None) -> None:
        """A request is over: the window may have room."""
        place, request = turn.place, turn.request
        was_sent = request in place.gate.sent
        place.gate.leave(request, asyncio.get_running_loop().time(), usage)
        if turn.give_back is not None:
            self._charge_borrowed(place.gate, request, usage)
            turn.give_back()
        elif place.gate.clients or self._waiting or self.foreign:
            self._admit(place, lends=was_sent)

    def give_back(self, place: Place, request: GatedRequest, *, lends: bool) -> None:
        """Another router gives back a place that was lent. `lends`: it may be lent again at once; not if that router could not use it."""
        place.gate.leave(request, asyncio.get_running_loop().time(), NOTHING)
        self._admit(place, lends=lends)

    def borrow(self, client: str, replica: str) -> Turn | None:
        """Another router lends a place for a client. Its turn there; None if no request can use it."""
        member, now_s = self._replicas.fleet.member(replica), asyncio.get_running_loop().time()
        if member is None or member.slot is None or not member.routable:
            return None
        if not self._service_ledger.accounting.orders_queue(replica):
            return None
        place = self._place(member, member.slot)
        found = self._calls.guest(place, client, now_s)
        if found is None:
            return None
        request, caller = found
        place.gate.send_outside(request)
        called = place.turns[request] = Turn(self, place, request)
        caller.call(called)
        self.moved += 1
        return called

    def withdrawn(self, member: Member) -> None:
        """A replica takes no new requests: those that wait for it select another one."""
        place = self._places.get(member.name)
        if place is not None:
            _send_away(place)

    def apply(self, config: RouterConfig, before: RouterConfig) -> None:
        """Use a changed configuration: a gate with other rules starts from zero, and its requests select again."""
        if config.scheduling != before.scheduling:
            places, self._places = self._places, {}
            self._ring.clear()
            for place in places.values():
                _send_away(place)

    # The upkeep (`gate.upkeep`).

    def in_use(self) -> list[str]:
        """The replicas whose queues are ordered here."""
        accounting = self._service_ledger.accounting
        return [
            name
            for name, place in self._places.items()
            if accounting.orders_queue(name) and place.incarnation == accounting.unreported(name)
        ]

    def read(self, replica: str, load: EngineLoad | None) -> None:
        """Take an engine's own figures; None: it does not give any."""
        place = self._places.get(replica)
        if place is not None:
            place.gate.read(load, asyncio.get_running_loop().time())
            self._admit(place)

    def hand_back(self) -> None:
        """Let waiting requests go to engines that order their own queue by now."""
        for name, place in self._places.items():
            if len(place.gate) and not self._service_ledger.accounting.orders_queue(name):
                _send_away(place)

    def publish(self, replica: str) -> None:
        """Put what changed at a gate into the ledger."""
        place = self._places.get(replica)
        if place is None or not place.incarnation:
            return
        self._charge_output(place)
        accounting, weights = self._service_ledger.accounting, self._service_ledger.weights
        held = place.gate.held(accounting.cost)
        before = accounting.rows(place.incarnation, (*held, *place.active))
        place.active = held.keys()
        changed = []
        for client, row in before.items():
            now = held.get(client, NOTHING_HELD)
            # Totals in the ledger only grow, and an estimate may be corrected downwards.
            service = max(row.service, accounting.received(place.incarnation, client) + now.service)
            more = (service - row.service) / weights.client(client)
            requests = row.requests + place.gate.admitted.pop(client, 0)
            news = ReplicaRow(client, service, row.normalised + more, requests, *now.state)
            if news != row:
                changed.append(news)
        if changed:
            place.sequence += 1
            self._service_ledger.ledger.observe(
                place.incarnation, since=place.sequence - 1, sequence=place.sequence, rows=changed
            )
            if place.gate.policy.quantum:
                self._service_ledger.replica_has_quantum(place.gate.policy.quantum)

    def share(self, replica: str) -> None:
        """Take what other routers published of their gates of a replica."""
        place = self._places.get(replica)
        if place is None or not place.incarnation:
            return
        ledger = self._service_ledger.ledger
        waiting: set[str] = set(place.gate.clients)
        accounts, running = {}, 0.0
        now_s = asyncio.get_running_loop().time()
        for router, incarnation in self._service_ledger.gates_of(replica, now_s):
            account = ledger.replica_accounts.get(incarnation)
            if account is not None:
                accounts[router] = account
                waiting.update(account.waiting)
                if router != ledger.router:
                    running += sum(account.running.values())
        at = {
            router: {
                client: ClientAtGate(account.served(client), account.clients.cell(client, WAITING))
                for client in waiting
            }
            for router, account in accounts.items()
        }
        place.gate.share(at, self._service_ledger.weights, running_elsewhere=running)
        self._admit(place)

    def rebalance(self) -> None:
        """Fill replicas that have room with requests that wait elsewhere.

        A router with one gate has all: it must know how full the engines are before it sends a request there.
        """
        if self._places:
            orders_queue = self._service_ledger.accounting.orders_queue
            for member in self._replicas.fleet:
                if member.routable and member.slot is not None and orders_queue(member.name):
                    place = self._place(member, member.slot)
                    if self._waiting:
                        self._admit(place)

    def _place(self, member: Member, slot: int) -> Place:
        """The gate of the process in a slot; a new one for a new process."""
        name = member.name
        place = self._places.get(name)
        incarnation = self._service_ledger.accounting.unreported(name)
        if place is None or (place.slot, place.incarnation) != (slot, incarnation):
            if place is not None:
                _send_away(place)
            # Gates of replicas that are gone end here.
            known = self._replicas.fleet.member
            self._places = {name: one for name, one in self._places.items() if known(name)}
            policy = policy_of(self._settings.config.scheduling)
            if incarnation and policy.name == SEEDED_POLICY:
                self._service_ledger.accounting.gated(incarnation)
            place = self._places[name] = Place(self._gate_of(policy, name), name, slot, incarnation)
            # A gate with other rules goes on where the last one of this incarnation stopped.
            place.sequence = int(self._service_ledger.ledger.sequence(incarnation))
            self._ring = deque(self._places.values())
        return place

    def _gate_of(self, policy: ReplicaPolicy, replica: str) -> Gate:
        ledger = self._service_ledger
        sharing = Sharing(
            ledger.ledger.router,
            ledger.weights,
            has_accounts=not isinstance(policy, UnchargedPolicy),
            offset=crc32(replica.encode()) / 2**32,
        )
        return Gate(policy, sharing, self._spare)

    def _charge_output(self, place: Place) -> None:
        for request in place.gate.sent:
            turn = place.turns.get(request)
            if turn is not None and turn.produced is not None:
                place.gate.progress(request, turn.produced.output_tokens)

    def _charge_borrowed(self, gate: Gate, request: GatedRequest, usage: Usage | None) -> None:
        """Charge the client here, too. The other router's own charge ends with the loan; it learns of this service as of all others."""
        cost = self._service_ledger.accounting.cost
        extend, output = request.extend_tokens, request.output_tokens
        if usage is not None:
            extend, output = usage.input_tokens - usage.cached_tokens, usage.output_tokens
        service = cost.input_cost(extend) + cost.output_cost(extend, 0, output)
        gate.policy.served_elsewhere(request.client, request.tenant, service)

    def _admit(self, place: Place, *, lends: bool = False) -> None:
        """Send the requests that may go to a replica now: of those that wait there, and of those that it calls.

        `lends`: a place that this router used is free, and requests of other routers may have it.
        """
        now_s = asyncio.get_running_loop().time()
        place.gate.prompts.expire(now_s)
        self._fill(place, now_s, lends=lends)
        due_s = place.gate.prompts.next_s()
        if self._waiting and due_s is not None and place.timer is None:
            place.timer = asyncio.get_running_loop().call_at(due_s, self._look, place)

    def _look(self, place: Place) -> None:
        """A prompt at the replica should be computed by now."""
        place.timer = None
        if self._places.get(place.replica) is place:
            self._admit(place)

    def _fill(self, place: Place, now_s: float, *, lends: bool) -> None:
        gate = place.gate
        if lends and gate.room.owes_place and (owed := self._calls.next_foreign(place, now_s)):
            request, foreign = owed
            gate.send_outside(request)
            foreign.lend(place, request, now_s)
            return
        guests = self._calls.guests(place, now_s, lends=lends)
        if not gate.clients:
            return
        if len(gate.clients) > 1 and gate.has_work:  # a single client needs no order
            self._charge_output(place)
        for request in gate.admit(now_s):
            caller = guests.pop(request, None)
            if caller is None:
                place.turns[request].decide(admitted=True)
            elif isinstance(caller, Turn):
                called = place.turns[request] = Turn(self, place, request)
                caller.call(called)
                self.moved += 1
            else:
                caller.lend(place, request, now_s)
        for guest in guests:
            gate.leave(guest, now_s, NOTHING)

    def _offer(self) -> None:
        """A request waits from now on: look for gates that would call it."""
        for _ in range(min(OFFERS, len(self._ring))):
            place = self._ring[0]
            self._ring.rotate(-1)
            if place.gate.calls:
                self._admit(place)
                return


def _send_away(place: Place) -> None:
    for request in place.gate.waiting():
        place.turns[request].decide(admitted=False)


def policy_of(scheduling: SchedulingConfig) -> ReplicaPolicy:
    """The policy of a gate, from zero."""
    deficits = DeficitRules(quantum=scheduling.client_quantum, rejoin=scheduling.rejoin)
    order = ORDERS[(scheduling.order or DEFAULT_ORDER).value]
    config = ReplicaPolicyConfig(cost=cost_of(scheduling), deficits=deficits, order=order)
    return make_policy(scheduling.replica_policy.value, config)
