"""The services of one router, as its admin port and its metrics show them: one, or each pool by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenkeel_contract.adminstate import SERVICE_QUERY

from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.request.console_page import PageFile
from evenkeel_router.request.tenant_console import Asked
from evenkeel_router.telemetry.console import Console
from evenkeel_router.telemetry.recorder import Recorder
from evenkeel_router.telemetry.rooms import Rooms


@dataclass(frozen=True, slots=True)
class Served:
    """One service."""

    rooms: Rooms
    console: Console
    recorder: Recorder


@dataclass(slots=True)
class AllServed:
    """All services of the router."""

    shared: Rooms
    """What the services share; of a router with one service, its own."""
    services: dict[str, Served] = field(default_factory=dict)
    """Name of a service → the service."""
    fallen_back: dict[tuple[str, str], int] = field(default_factory=dict)
    """(model that a request named, model that served it) → requests."""
    is_ready: bool = False
    """Whether the replicas of all services were known once."""

    @property
    def several(self) -> bool:
        """Whether the router is made for several services."""
        return not self.shared.has_service

    def named(self, service: str) -> Served | None:
        """The service of that name; without a name, the only one."""
        if self.several:
            return self.services.get(service)
        only = next(iter(self.services.values()), None)
        if only is None or service not in ("", only.rooms.settings.config.service):
            return None
        return only

    def all_rooms(self) -> Sequence[Rooms]:
        """What the services share, if there are several, and each service."""
        shared = [self.shared] if self.several else []
        return [*shared, *(one.rooms for one in self.services.values())]

    def look(self) -> bool:
        """Whether the router takes requests: a service that is added later does not change that."""
        if not self.is_ready:
            found = [one.rooms.replicas.in_sync for one in self.services.values()]
            self.is_ready = bool(found) and all(found)
        return self.is_ready

    @property
    def files(self) -> Mapping[str, PageFile]:
        """The files of the console's page, which has no data."""
        return next(iter(self.services.values())).console.files

    async def answer(self, path: str, tenant: str, asked: Asked) -> bytes:
        """Figures of the console: of the named service, or of the first. Raises `Refusal`."""
        service = asked.service
        served = self.named(service) or (None if service else next(iter(self.services.values())))
        if served is None:
            raise self.unknown(service)
        return await served.console.answer(path, tenant, asked)

    def unknown(self, service: str) -> Refusal:
        """The refusal of a question about a service that the router does not have."""
        known = ", ".join(self.services)
        message = f"service must be one of {known}, not {service[:200]!r}."
        return Refusal(Outcome.NOT_FOUND, message, code="unknown_service", param=SERVICE_QUERY)
