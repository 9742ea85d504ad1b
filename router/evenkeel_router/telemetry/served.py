"""The services of one router, as its admin port and its metrics show them: one, or each pool by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenkeel_contract.adminstate import SERVICE_QUERY
from evenkeel_contract.consolestate import MODEL_QUERY, ConsoleState, ModelNow
from msgspec.structs import replace

from evenkeel_router.api.errors import Outcome, Refusal
from evenkeel_router.api.identity import names_of
from evenkeel_router.request.console_page import PageFile
from evenkeel_router.request.tenant_console import Asked
from evenkeel_router.telemetry import all_models
from evenkeel_router.telemetry.console import Answers, Console, ConsoleAnswer
from evenkeel_router.telemetry.recorder import Recorder
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.snapshot import Steps


@dataclass(frozen=True, slots=True)
class Served:
    """One service."""

    rooms: Rooms
    console: Console
    recorder: Recorder

    @property
    def service(self) -> str:
        """Name of the service."""
        return self.rooms.settings.config.service

    def is_named(self, asked: Asked) -> bool:
        """Whether a query names it, or names none."""
        if asked.model:
            return asked.model in self.rooms.names
        return asked.service in ("", self.service)


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
    _answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        self._answers = Answers(self.shared.settings.timing.console_tick_s)

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
        """Figures of the console: of the named model or service, of the only one, or of all. `tenant`: the reader, who sees the models that
        it may use. Raises `Refusal`."""
        offered = self._offered(tenant)
        chosen = {name: one for name, one in offered.items() if one.is_named(asked)}
        if not chosen:
            raise _unknown_model(asked, offered)
        models = tuple(ModelNow(model=name, service=one.service) for name, one in offered.items())

        def steps(now_s: float) -> Steps[ConsoleAnswer]:
            if len(chosen) > 1:
                consoles = {name: one.console for name, one in chosen.items()}
                return (yield from all_models.steps(consoles, path, asked, now_s, tenant=tenant))
            [(model, one)] = chosen.items()
            state = yield from one.console.steps(path, tenant, asked, now_s)
            if isinstance(state, ConsoleState) and len(models) > 1:
                return replace(state, model=model, models=models)
            return state

        key = path, tenant, "" if len(chosen) > 1 else next(iter(chosen))
        return await self._answers.built(key, asked, steps)

    def _offered(self, tenant: str) -> dict[str, Served]:
        """The usual name of each model → its service, for a reader."""
        name = names_of(f"{tenant}/-")[0] if tenant else ""
        allowed = {pool.service: pool.tenants for pool in self.shared.settings.config.pools}
        return {
            one.rooms.names[0]: one
            for service, one in self.services.items()
            if not name or (given := allowed.get(service)) is None or name in given
        }

    def unknown(self, service: str) -> Refusal:
        """The refusal of a question about a service that the router does not have."""
        known = ", ".join(self.services)
        message = f"service must be one of {known}, not {service[:200]!r}."
        return Refusal(Outcome.NOT_FOUND, message, code="unknown_service", param=SERVICE_QUERY)


def _unknown_model(asked: Asked, offered: Mapping[str, Served]) -> Refusal:
    """The refusal of a model that the reader may not see, with those that it may."""
    if not offered:
        message = "This key may use no model of this address."
        return Refusal(Outcome.NOT_FOUND, message, code="unknown_model", param=MODEL_QUERY)
    field, given = (MODEL_QUERY, asked.model) if asked.model else (SERVICE_QUERY, asked.service)
    known = offered if asked.model else (one.service for one in offered.values())
    message = f"{field} must be one of {', '.join(known)}, not {given[:200]!r}."
    code = "unknown_model" if asked.model else "unknown_service"
    return Refusal(Outcome.NOT_FOUND, message, code=code, param=field)
