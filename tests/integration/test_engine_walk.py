"""The files of which a request, and a step of decoding, run code inside SGLang are those that ARCHITECTURE.md lists."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_sglang import hooks, seams

from tests.support.walks import listed, noted
from tests.unit.evenkeel_plugin.test_scheduling import Req, req

FOLDERS = ("plugins/sglang", "plugins/common", "fairshare", "contract")
ROOMS = {
    "plug-in": "plugins/sglang/evenkeel_sglang",
    "shared": "plugins/common/evenkeel_plugin",
    "replica": "fairshare/evenkeel_fairshare/replica",
}


@dataclass
class Batch:
    """A batch of SGLang's, as far as the hooks read it."""

    reqs: list[Req]
    extends: bool = False
    batch_is_full: bool = False

    @property
    def forward_mode(self) -> Batch:
        return self

    def is_extend(self) -> bool:
        return self.extends

    @property
    def extend_lens(self) -> list[int]:
        return [len(one.origin_input_ids) for one in self.reqs]

    def is_empty(self) -> bool:
        return not self.reqs


@dataclass
class Scheduler:
    """The steps of SGLang's scheduler that lead to a hook, in its order."""

    max_total_num_tokens = 10_000
    waiting_queue: list[Any] = field(default_factory=list)
    can_run_list: list[Req] = field(default_factory=list)
    running: list[Req] = field(default_factory=list)
    chunked_req: None = None
    tree_cache: None = None
    server_args: Any = field(
        default_factory=lambda: SimpleNamespace(tp_size=1, pp_size=1, device="cpu")
    )
    tp_worker: Any = None

    @property
    def evenkeel_scheduler(self) -> Scheduler:
        return self

    def serve(self, request: Req) -> None:
        """Prefill, a step of decoding, the end."""
        self.begin(request)
        self.decode()
        request.is_over = True
        self.decode()
        self.running = []

    def begin(self, request: Req) -> None:
        request.sampling_params = SimpleNamespace(max_new_tokens=4, ignore_eos=False)  # type: ignore[assignment]
        self.waiting_queue.append(request)
        hooks.new_prefill(Scheduler.prefill, self, Batch(self.running))
        self.forward(Batch(self.can_run_list, extends=True))
        self.running, self.can_run_list = self.can_run_list, []

    def decode(self) -> None:
        hooks.new_prefill(Scheduler.prefill, self, Batch(self.running))
        self.forward(Batch(self.running))

    def prefill(self, running: Batch) -> None:
        if not self.waiting_queue:  # there is no prompt in chunks either
            return
        hooks.calc_priority(_never, self, self.waiting_queue, running)
        for request in self.waiting_queue:
            hooks.add_request(Scheduler.add_one_req, self, request)
        self.waiting_queue = [one for one in self.waiting_queue if one not in self.can_run_list]

    def add_one_req(self, request: Req) -> None:
        self.can_run_list.append(request)

    def forward(self, batch: Batch) -> None:
        result = hooks.run_batch(Scheduler.run_batch, self, batch)
        hooks.process_result(lambda *_: None, self, batch, result)

    def run_batch(self, batch: Batch) -> SimpleNamespace:
        for request in batch.reqs:
            request.output_ids.append(7)
        return SimpleNamespace()


def _never(*_: Any) -> None:
    raise AssertionError("SGLang's own order is not used")


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """With the default settings. SGLang's own search of its cache finds nothing."""
    monkeypatch.setattr(seams, "matcher", lambda: lambda request, tree_cache: None)
    monkeypatch.setattr(seams, "misfits", lambda *_: "")
    monkeypatch.setattr(hooks, "_rank_clock", None)
    made = Scheduler()
    scheduling = hooks.make_scheduling("DLPM", EngineSettings(), made)
    monkeypatch.setattr(hooks, "_scheduling", scheduling)
    thresholds = gc.get_threshold()
    yield made
    gc.set_threshold(*thresholds)
    gc.unfreeze()  # what the plug-in froze at its first step


def test_a_request_runs_the_files_that_architecture_lists(scheduler: Scheduler) -> None:
    scheduler.serve(req("first"))  # the first one of a client makes more: its key is read
    with noted(FOLDERS) as found:
        scheduler.serve(req("second"))
    assert found == listed("Inside SGLang one request", ROOMS)


def test_a_step_of_decoding_runs_the_files_that_architecture_lists(scheduler: Scheduler) -> None:
    scheduler.begin(req("first"))
    scheduler.decode()
    with noted(FOLDERS) as found:
        scheduler.decode()
    assert found == listed("most steps only decode", ROOMS)
