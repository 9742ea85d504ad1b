"""The plug-in imported over a fake of vLLM's scheduler, and a small loop that drives it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import pytest
from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_contract.reports import ClientReport
from evenkeel_vllm import seams

from tests.support import fake_vllm
from tests.support.fake_vllm import Request, RequestStatus

QUANTUM = 100.0


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`evenkeel_vllm.scheduler`, as it is where vLLM is installed."""
    for name, module in fake_vllm.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("scheduler", "waiting_queue"):
        monkeypatch.delitem(sys.modules, f"evenkeel_vllm.{name}", raising=False)
    scheduler = importlib.import_module("evenkeel_vllm.scheduler")
    monkeypatch.setattr(seams, "installed", lambda: fake_vllm.VERSION)
    settings = EngineSettings(client_quantum=QUANTUM, warmup_s=0.0)
    for variable, value in settings.to_environment().items():
        monkeypatch.setenv(variable, value)
    return scheduler


class Engine:
    """vLLM's loop over its scheduler: a step chooses a batch, a forward pass makes a token for each prompt that is complete."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def send(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add_request(request)

    def schedule(self) -> Any:
        return self.scheduler.schedule()

    def step(self, *, stop: Iterable[str] = ()) -> list[str]:
        """A step; returns the ids in its batch. `stop` names the requests that end with it."""
        output = self.schedule()
        self.scheduler.update_from_output(output, set(stop))
        return list(output.num_scheduled_tokens)

    def abort(self, *ids: str) -> None:
        self.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)

    def totals(self, client: str = "a") -> ClientReport:
        """What a client was served, as reports have it."""
        found: ClientReport = self.scheduler.scheduling.snapshot()[0][f"ns/{client}/{client}"]
        return found

    def deficit(self, client: str = "a") -> float:
        return float(self.scheduler.scheduling.snapshot()[1][f"ns/{client}/{client}"].deficit)

    def waiting(self, client: str = "a") -> int:
        """Its waiting requests, as reports have them."""
        state = self.scheduler.scheduling.snapshot()[1].get(f"ns/{client}/{client}")
        return 0 if state is None else state.waiting


@pytest.fixture
def engine(plugin: ModuleType) -> Callable[..., Engine]:
    """Makes an engine, with the parameters of `fake_vllm.config`."""
    return lambda **given: Engine(plugin.FairScheduler(fake_vllm.config(**given)))


def request(
    rid: str, client: str = "a", *, tokens: int = 60, base: int = 0, **fields: Any
) -> Request:
    prompt: Sequence[int] = range(base, base + tokens)
    return Request(rid, f"ek1;ns/{client}/{client};w=1,1", list(prompt), **fields)
