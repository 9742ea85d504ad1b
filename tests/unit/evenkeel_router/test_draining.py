"""The end of a router in virtual time: whom it serves until when, and what it ends."""

from __future__ import annotations

import asyncio

import pytest
from evenkeel_router.api.errors import Refusal
from evenkeel_router.request.draining import LATE_S, QUIET_S, drain
from evenkeel_router.request.intake import Intake
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.router_rooms import asked, client, rooms_of
from tests.support.virtual_time import run_virtually

DRAIN_S = 60.0
CLIENT = client()


class Scene:
    """A router that begins to drain now."""

    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time
        self.began_s = self.now()
        self.rooms: Rooms = rooms_of(drain_timeout_s=DRAIN_S)
        self.intake: Intake = self.rooms.intake
        self.closed_idle_s: list[float] = []
        self.ended_s: list[float] = []

    def passed_s(self) -> float:
        return self.now() - self.began_s

    def begin(self) -> asyncio.Task[None]:
        config = self.rooms.settings.config
        return asyncio.create_task(
            drain(self.intake, config, lambda: self.closed_idle_s.append(self.passed_s()))
        )

    async def request(self, takes_s: float) -> None:
        """One request, which ends when it is interrupted."""
        state, _ = asked()
        self.intake.admission.enter(CLIENT, 1, self.now())
        self.intake.active_requests.add(state)
        state.task = asyncio.current_task()
        try:
            await asyncio.sleep(takes_s)
        except asyncio.CancelledError:
            assert state.interrupted()
        finally:
            self.intake.active_requests.discard(state)
            self.intake.admission.leave(CLIENT, 0, self.now())
            self.ended_s.append(self.passed_s())

    def lets_in(self, opened_s: float) -> bool:
        """Whether a request is served on a connection that was opened so long after the beginning."""
        _, request = asked()
        request.connection.opened_s = self.began_s + opened_s
        request.keep_alive = True
        try:
            self.intake.let_in(request)
        except Refusal:
            return False
        finally:
            assert not request.keep_alive
        return True


def test_without_requests_it_ends_after_a_quiet_time() -> None:
    async def scene() -> None:
        one = Scene()
        await one.begin()
        assert one.passed_s() == pytest.approx(QUIET_S, abs=0.1)
        assert one.closed_idle_s == []

    run_virtually(scene())


def test_a_request_in_the_quiet_time_begins_it_again() -> None:
    async def scene() -> None:
        one = Scene()
        draining = one.begin()
        await asyncio.sleep(QUIET_S * 0.8)
        await one.request(10.0)
        await draining
        assert one.passed_s() == pytest.approx(10.0 + QUIET_S * 1.8, abs=0.1)
        assert one.closed_idle_s == []

    run_virtually(scene())


def test_connections_that_come_late_are_refused_and_others_are_served() -> None:
    async def scene() -> None:
        one = Scene()
        draining, request = one.begin(), asyncio.create_task(one.request(DRAIN_S - 1))
        await asyncio.sleep(LATE_S + 1)
        assert one.lets_in(LATE_S - 0.1)
        assert not one.lets_in(LATE_S + 0.1)
        await draining
        await request
        assert one.closed_idle_s == [pytest.approx(DRAIN_S / 2, abs=0.1)]
        assert one.ended_s == [pytest.approx(DRAIN_S - 1)]

    run_virtually(scene())


def test_when_the_time_is_over_requests_end_and_none_is_let_in() -> None:
    async def scene() -> None:
        one = Scene()
        draining = one.begin()
        requests = [asyncio.create_task(one.request(10 * DRAIN_S)) for _ in range(3)]
        await asyncio.sleep(DRAIN_S - 1)
        assert one.lets_in(-1.0)
        await draining
        await asyncio.gather(*requests)
        assert one.ended_s == [pytest.approx(DRAIN_S, abs=0.2)] * 3
        assert not one.lets_in(-1.0), "not even on a connection that was there before"

    run_virtually(scene())
