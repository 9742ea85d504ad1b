"""Streams of users who read: when each token came (QoE), and streams that are sent on no faster than they are read.

An event with content counts as one token. A paced stream is read from its replica at full speed, into a buffer of `MAX_HELD_BYTES`;
the replica is free as soon as it has made the last token. Beyond the buffer the replica is not read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from evenkeel_contract.qoeconfig import Delivery, QoeConfig
from evenkeel_fairshare.qoe import AnswerTimeline, Expectation

from evenkeel_router.request.relay import Answered, Relay

MAX_HELD_BYTES: Final = 256 * 1024
"""Bytes of one stream that may wait. A chat's event has about 250 bytes, so this is about a thousand tokens."""
TICK_S: Final = 0.001
"""Events that are due within this time are sent, too: uvloop's timers count milliseconds."""


def relay_of(qoe: QoeConfig) -> Callable[[Answered], Relay]:
    """Makes the relays of streams."""
    expectation = Expectation(qoe.expected_ttft_s, 1 / qoe.expected_itl_s)
    kind = PacedRelay if qoe.delivery is Delivery.PACED else MeasuredRelay
    return partial(kind, expectation=expectation)


class MeasuredRelay(Relay):
    """Notes when each token came."""

    __slots__ = ("_now", "delivery")

    def __init__(self, answered: Answered, *, expectation: Expectation) -> None:
        super().__init__(answered)
        self._now = asyncio.get_running_loop().time
        self.delivery = AnswerTimeline(self.request_state.started_s, expectation)
        self.request_state.delivery = self.delivery
        self.passes = self._passes

    def feed(self, data: bytes, last: bool) -> None:
        super().feed(data, last)
        self.delivery.add(self.scan.content_events - self.delivery.tokens, self._now())

    def _passes(self, chunk: bytes) -> bool:
        is_event = self.scan.passes(chunk)
        if is_event:
            self.delivery.add(1, self._now())
        return is_event


class PacedRelay(MeasuredRelay):
    """Sends a token when its user has read the one before it."""

    __slots__ = ("_attempt", "_held", "_held_bytes", "_timer", "_waiter")

    def __init__(self, answered: Answered, *, expectation: Expectation) -> None:
        super().__init__(answered, expectation=expectation)
        self._attempt = answered.attempt
        self._held: deque[tuple[float, bytes]] = deque()
        """When events are due, and the events."""
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, data: bytes, last: bool) -> None:
        """Every chunk comes here: none may pass before it is due."""
        scan, left = self.scan, len(data)
        for piece in _pieces(data):
            events = scan.feed(piece)
            left -= len(piece)
            if events and not self.begun:
                events = self._opened(events, last and not left) or b""
            if events:
                self._take(events, scan.content_events - self.delivery.tokens)
            if scan.broken is not None or scan.cut:
                break
        if scan.broken is not None or scan.cut or self._is_full:
            self.reply.hold()

    @property
    def all_sent(self) -> bool:
        return not self._held

    async def room(self, idle_s: float) -> None:
        while self._is_full:
            await self._sent()
        await super().room(idle_s)

    async def send_rest(self) -> None:
        """The replica is free meanwhile."""
        self._attempt.finished(self.usage())
        while self._held:
            await self._sent()

    def send_now(self) -> None:
        events = b"".join(events for _, events in self._held)
        self.close()
        if events:
            self.stream.send(events)

    def close(self) -> None:
        self._held.clear()
        self._held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _is_full(self) -> bool:
        return self._held_bytes > MAX_HELD_BYTES

    def _take_opening(self, events: bytes) -> bytes:
        """What came before the first content is due at once."""
        held, self._opening = self._opening, []
        for part in held:
            self.stream.send(part)
        return events

    def _take(self, events: bytes, tokens: int) -> None:
        """Send or hold them. Events without a token follow the token before them."""
        now_s = self._now()
        if tokens:
            due_s = self.delivery.next_s(now_s)
            self.delivery.add(tokens, now_s)
        else:
            due_s = self._held[-1][0] if self._held else now_s
        if not self._held and due_s <= now_s + TICK_S:
            self.stream.send(events)
            if self.request_state.first_byte_s is None:
                self._answered.begun()
            return
        self._held.append((due_s, events))
        self._held_bytes += len(events)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._release)

    def _release(self) -> None:
        """Send what is due."""
        self._timer = None
        until_s, due = self._now() + TICK_S, []
        while self._held and self._held[0][0] <= until_s:
            due.append(self._held.popleft()[1])
        events = b"".join(due)
        self._held_bytes -= len(events)
        self.stream.send(events)
        if self._held:
            self._timer = asyncio.get_running_loop().call_at(self._held[0][0], self._release)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _sent(self) -> None:
        """Wait until something of what is held was sent."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


def _pieces(data: bytes) -> Iterator[bytes]:
    """Cut behind each event, so that each is due at its own time."""
    start = 0
    while (end := data.find(b"\n\n", start)) >= 0:
        yield data[start : end + 2]
        start = end + 2
    if start < len(data):
        yield data[start:]
