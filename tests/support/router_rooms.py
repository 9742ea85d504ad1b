"""A router's rooms without its ports, and requests that are taken through them by hand."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.reports import ClientReport
from evenkeel_contract.routerconfig import SchedulingConfig, TenantConfig
from evenkeel_fairshare.fleet.contract import EMPTY
from evenkeel_router.api.endpoints import ENDPOINTS
from evenkeel_router.api.identity import UNPAID, Client, Paid, client_of
from evenkeel_router.request.attempt import Attempt
from evenkeel_router.request.request_state import AdmittedRequest, RequestState
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.transport.client_connection import ClientConnection
from evenkeel_router.transport.client_request import Body, Request
from multidict import CIMultiDict

from tests.support.fakes import FakeUpstream, replicas
from tests.support.routers import MODEL, config_for

PATH = "/v1/completions"
TOKENS = 100
_numbers = count()
OWNER: Any = None
"""Of a client's connection that is not open: only a connection that opens asks its server anything."""


def client(tenant: str = "acme", name: str = "c") -> Client:
    """A client of a tenant without limits or weights."""
    return client_of(TenantConfig(namespace="ns", name=tenant), name)


def rooms_of(*names: str, incarnation: str = "router", **changes: Any) -> Rooms:
    """A router's rooms, and replicas that take requests and make no reports: the router orders their queues."""
    given = {"scheduling": SchedulingConfig(queue=QueueOwner.AUTO)} | changes
    rooms = Rooms.make(config_for(**given), incarnation=incarnation)
    for name in names:
        joins(rooms, name)
    return rooms


def joins(rooms: Rooms, name: str) -> None:
    """A new process without reports takes requests."""
    fleet = rooms.replicas.fleet
    member = fleet.member(name) or fleet.add(name)
    rooms.replicas.configured[name] = replicas(1)[0]
    rooms.service_ledger.accounting.meets_unreported(name, 0.0)
    fleet.ready(member)
    rooms.replicas.wait_queue.open()


def ends(rooms: Rooms, name: str) -> None:
    """A replica's process is gone."""
    member = rooms.replicas.fleet.member(name)
    assert member is not None
    rooms.replicas.fleet.lost(member)


def reports(
    rooms: Rooms,
    name: str,
    incarnation: str,
    *clients: ClientReport,
    sequence: int = 1,
    since: int = 0,
) -> None:
    """A replica reports; in full, unless it says since when."""
    accounting = rooms.service_ledger.accounting
    accounting.meets(name, incarnation, policy="DLPM", now_s=0.0)
    accounting.observe(incarnation, clients, policy="DLPM", sequence=sequence, since=since)


def held(of: Client, *, running: int = 0, waiting: int = 0, admitted: int = 0) -> ClientReport:
    """What a replica has of a client."""
    return ClientReport(of.identity, 0, 0, 0, 0, 0, 0, admitted, 0, 0, waiting, running, 0, 0)


def admitted(rooms: Rooms, of: Client, **changes: Any) -> AdmittedRequest:
    """A request of `TOKENS` tokens that no other request has."""
    prompt = [next(_numbers)] * TOKENS
    body = json.dumps({"model": MODEL, "prompt": prompt, **changes}).encode()
    endpoint = ENDPOINTS[PATH]
    inference = endpoint.api.parse(body, rooms.intake.limits, "application/json")
    match = rooms.replicas.fleet.match(
        of.identity, weight=of.weight, text=inference.text, input_tokens=TOKENS
    )
    return AdmittedRequest(of, rooms.totals.of(of), endpoint, inference, match)


def asked() -> tuple[RequestState, Request]:
    """A request whose client's connection is not open."""
    connection = ClientConnection(OWNER)
    request = Request(connection, Body(connection), "POST", PATH, CIMultiDict())
    return RequestState("1", PATH, connection.opened_s), request


def selected(rooms: Rooms, of: Client, *, gated: bool = True, paid: Paid = UNPAID) -> Attempt:
    """An attempt with a ticket, and a turn at the gate of its replica."""
    fleet, one = rooms.replicas.fleet, admitted(rooms, of)
    ticket = fleet.select(one.match, EMPTY)
    assert ticket is not None
    attempt = Attempt(fleet, rooms.service_ledger.accounting, ticket, EMPTY)
    if gated:
        attempt.turn = rooms.gates.enter(ticket, of, streams=True, max_output_tokens=9, paid=paid)
    return attempt


async def dispatched(
    rooms: Rooms, of: Client, upstream: FakeUpstream, *, paid: Paid = UNPAID
) -> Attempt:
    """An attempt that holds all that an attempt can hold."""
    attempt = selected(rooms, of, paid=paid)
    attempt.exchange = await upstream.connect(replicas(1)[0])
    attempt.dispatched(of, paid=paid, now_s=0.0)
    return attempt


def is_empty(rooms: Rooms) -> bool:
    """Whether no request holds anything: at a replica, at a gate, or in the books."""
    fleet, gates = rooms.replicas.fleet, rooms.gates
    at_gates = [gates.gate(member.name) for member in fleet]
    return not (
        any(fleet.load(member) for member in fleet)
        or any(
            gate.sent or gate.clients or gate.unanswered for gate in at_gates if gate is not None
        )
        or rooms.service_ledger.accounting._open
    )
