"""Who waits at the gates of one router, and whom a free place may call from another gate (R12). Pure.

A free place first calls clients that wait elsewhere and not here: each arrives here as a guest, and the policy decides between it and the
clients that wait here. Clients come in rotation, so each is looked at after as many free places as there are clients, divided by `LOOKS`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

LOOKS: Final = 32
"""Clients that one free place looks at."""
GUESTS: Final = 2
"""Clients that one free place calls: each costs an arrival and a departure."""


class Waits(Protocol):
    """A request that waits."""

    @property
    def who(self) -> str:
        """The client."""


W = TypeVar("W", bound=Waits)


class Waiters(Generic[W]):
    """What waits, by client, each in order of arrival."""

    __slots__ = ("_clients", "changed")

    def __init__(self) -> None:
        self._clients: OrderedDict[str, dict[W, None]] = OrderedDict()
        self.changed: Callable[[], None] = lambda: None
        """Callback when a client begins or ends to wait."""

    def __len__(self) -> int:
        """Clients that wait."""
        return len(self._clients)

    def add(self, one: W) -> None:
        """Note what waits from now on."""
        waiting = self._clients.get(one.who)
        if waiting is None:
            self._clients[one.who] = {one: None}
            self.changed()
        else:
            waiting[one] = None

    def remove(self, one: W) -> None:
        """A request waits no more; does nothing the second time."""
        waiting = self._clients.get(one.who)
        if waiting is not None:
            waiting.pop(one, None)
            if not waiting:
                del self._clients[one.who]
                self.changed()

    def oldest(self, client: str) -> Iterator[W]:
        """What a client has waiting, the oldest first. Nothing may be added or removed meanwhile."""
        return iter(self._clients.get(client, ()))

    def clients(self, most: int = LOOKS) -> Iterator[str]:
        """The next clients in rotation. Nothing may be added or removed meanwhile."""
        clients = self._clients
        for _ in range(min(most, len(clients))):
            client = next(iter(clients))
            clients.move_to_end(client)
            yield client
