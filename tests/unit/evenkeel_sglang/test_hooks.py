"""The hook that makes the next chunk of a prompt wait, over a scheduler that is only its fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_sglang import hooks

from tests.support.replica import admit, arrive, request


@dataclass
class Batch:
    """The batch that decodes."""

    requests: int = 1

    def is_empty(self) -> bool:
        return not self.requests


@dataclass
class Scheduler:
    """The fields of SGLang's `Scheduler` that decide whether there is a prefill."""

    chunked_req: str | None
    waiting_queue: list[str] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    """Requests whose grammar becomes ready in the next pass."""

    def get_new_batch_prefill(self, running_batch: Batch) -> list[str] | None:
        self.waiting_queue += self.ready
        if not self.waiting_queue and self.chunked_req is None:
            return None
        return [self.chunked_req or "", *self.waiting_queue]


@dataclass
class Scheduling:
    """Which requests have to wait."""

    waits: set[str]

    def must_wait(self, request: str) -> bool:
        return request in self.waits

    def end_pass(self) -> None:
        pass

    def look(self, queue: list[str]) -> None:
        pass


@pytest.mark.parametrize(
    ("waits", "want"), [(set(), ["long", "short"]), ({"long"}, None)], ids=["goes on", "waits"]
)
def test_a_prompt_in_chunks_waits_with_the_whole_prefill(monkeypatch, waits, want):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling(waits))
    scheduler = Scheduler("long", ["short"])
    assert hooks.new_prefill(Scheduler.get_new_batch_prefill, scheduler, Batch()) == want
    assert (scheduler.chunked_req, scheduler.waiting_queue) == ("long", ["short"])


def test_a_request_that_becomes_ready_meanwhile_is_kept(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling({"long"}))
    scheduler = Scheduler("long", ["short"], ready=["new"])
    hooks.new_prefill(Scheduler.get_new_batch_prefill, scheduler, Batch())
    assert scheduler.waiting_queue == ["short", "new"]


def test_without_a_policy_of_evenkeel_the_engine_decides(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", None)
    scheduler = Scheduler("long")
    assert hooks.new_prefill(Scheduler.get_new_batch_prefill, scheduler, Batch()) == ["long"]


def test_nothing_waits_beside_an_empty_batch(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling({"long"}))
    scheduler = Scheduler("long")
    assert hooks.new_prefill(Scheduler.get_new_batch_prefill, scheduler, Batch(0)) == ["long"]


@pytest.mark.parametrize(("order", "want"), [("", "long"), ("MatchOctaves", "short")])
def test_the_policy_has_the_order_of_the_environment(monkeypatch, order, want):
    monkeypatch.setattr(hooks.seams, "matcher", lambda: None)
    scheduler = SimpleNamespace(server_args=SimpleNamespace(tp_size=1, pp_size=1), tree_cache=None)
    settings = EngineSettings.from_environment({"EVENKEEL_ORDER": order})
    policy = hooks.make_scheduling("DLPM", settings, scheduler).policy
    arrive(policy, request("long", extend=80_000, matched=9), request("short"))
    assert admit(policy)[0] == want
