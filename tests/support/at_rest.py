"""What a router must hold nothing of once it has ended: every request gave back what it took, however it ended."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from evenkeel_router import app
from evenkeel_router.fleet.member import Member
from evenkeel_router.telemetry.rooms import Rooms


def departures(rooms: Rooms) -> set[int]:
    """The slots of processes that are lost with requests in flight from now on: their tickets are not given back (R6)."""
    fleet, departed = rooms.replicas.fleet, set[int]()
    lost = fleet.lost

    def noting(member: Member) -> None:
        # Without requests a load is a ticket that was kept.
        if member.slot is not None and fleet.load(member) and rooms.intake.active_requests:
            departed.add(member.slot)
        lost(member)

    fleet.lost = noting  # type: ignore[method-assign]
    return departed


def held(rooms: Rooms, departed: Collection[int] = ()) -> dict[str, Any]:
    """What requests still hold of a router, by name; empty: nothing. `departed`: slots that do not count."""
    intake, fleet = rooms.intake, rooms.replicas.fleet
    admission, memory = intake.admission, intake.body_memory
    found: dict[str, Any] = {
        "active requests": len(intake.active_requests),
        "attempts without an answer": len(intake.unanswered),
        "requests in admission": admission.running,
        "tenants in admission": [one for one, of in admission._tenants.items() if of.running],
        "clients in admission": dict(admission._clients),
        "bytes of bodies": memory.used_bytes,
        "tenants with bodies": [one for one, of in memory._tenants.items() if of._held_bytes],
        "tickets of the fleet": {
            slot: count
            for slot, count in enumerate(fleet.outstanding)
            if count and slot not in departed
        },
        "open bookings": dict(rooms.service_ledger.accounting._open),
        "turns at gates": [one for one, place in rooms.gates._places.items() if place.turns],
        "requests that wait for a replica": len(rooms.replicas.wait_queue),
    }
    return {name: value for name, value in found.items() if value}


@contextmanager
def all_given_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All routers that end inside of the context hold nothing when it ends."""
    routers: list[tuple[Rooms, set[int]]] = []

    class Watched(Rooms):
        """Rooms that are looked at in the end."""

        @classmethod
        def make(cls, *arguments: Any, **named: Any) -> Watched:
            made = super().make(*arguments, **named)
            routers.append((made, departures(made)))
            return made

    monkeypatch.setattr(app, "Rooms", Watched)
    yield
    for rooms, departed in routers:
        left = held(rooms, departed)
        assert left == {}, left
