"""The hook that makes the next chunk of a prompt wait, over a scheduler that is only its fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_fairshare.replica.contract import AdmissionResult
from evenkeel_sglang import hooks
from evenkeel_sglang.chunks import missing_tokens, refusal_beside, reserved_tokens

from tests.support.replica import admit, arrive, request


@dataclass
class Batch:
    """The batch that decodes."""

    requests: int = 1
    reqs: list[str] = field(default_factory=list)
    batch_is_full: bool = False

    def is_empty(self) -> bool:
        return not self.requests


@dataclass
class Plan:
    """What the scheduler does next: the prefill of `batch_to_run`, or a decode step."""

    batch_to_run: list[str] | None


@dataclass
class Scheduler:
    """The fields of SGLang's `Scheduler` that decide whether there is a prefill."""

    chunked_req: str | None = None
    waiting_queue: list[str] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)
    """Requests whose grammar becomes ready in the next pass."""
    fitting: set[str] = field(default_factory=set)
    """Requests that a pass without the prompt in chunks admits."""
    enable_lora: bool = False
    truncation_align_size: int | None = None
    is_hybrid_swa: bool = True
    """Then the memory for chunks is SGLang's own matter."""
    chunked_prefill_size: int = 2048
    page_size: int = 16
    token_to_kv_pool_allocator: Any = None
    tree_cache: Any = None
    alignments: list[int | None] = field(default_factory=list)
    """Of the passes so far."""

    def get_new_batch_prefill(self, running_batch: Batch) -> Plan:
        self.alignments.append(self.truncation_align_size)
        self.waiting_queue += self.ready
        if self.chunked_req is not None:
            return Plan([self.chunked_req, *self.waiting_queue])
        return Plan([one for one in self.waiting_queue if one in self.fitting] or None)


@dataclass
class Scheduling:
    """Which requests have to wait, and which ones go after others that wait in the queue."""

    waits: set[str] = field(default_factory=set)
    last: set[str] = field(default_factory=set)
    chunk_waits: str | None = None
    looked: list[tuple[list[str], list[str], str | None]] = field(default_factory=list)
    """What the engine held at each look."""
    wants: bool = False
    """Whether a client below its share of the memory has waited long enough."""

    def must_wait(self, request: str) -> bool:
        return request in self.waits

    def should_wait(self, request: str, queue: list[str], batch: list[str]) -> bool:
        return request in self.waits | self.last

    def end_pass(self) -> None:
        pass

    def wants_pass(self) -> bool:
        return self.wants

    def look(self, queue: list[str], batch: list[str], chunk: str | None) -> None:
        self.looked.append((list(queue), batch, chunk))


def prefill(scheduler: Scheduler, *, running: int = 1) -> list[str] | None:
    plan = hooks.new_prefill(Scheduler.get_new_batch_prefill, scheduler, Batch(running))
    return plan.batch_to_run


@pytest.mark.parametrize(
    ("waits", "want"), [(set(), ["long", "short"]), ({"long"}, None)], ids=["goes on", "waits"]
)
def test_a_prompt_in_chunks_waits_while_others_decode(monkeypatch, waits, want):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling(waits))
    scheduler = Scheduler("long", ["short"])
    assert prefill(scheduler) == want
    assert (scheduler.chunked_req, scheduler.waiting_queue) == ("long", ["short"])


@pytest.mark.parametrize("running", [0, 1])
def test_requests_of_others_enter_between_two_chunks(monkeypatch, running):
    scheduling = Scheduling(last={"long"})
    monkeypatch.setattr(hooks, "_scheduling", scheduling)
    scheduler = Scheduler("long", ["short"], fitting={"short"})
    assert prefill(scheduler, running=running) == ["short"]
    assert (scheduler.chunked_req, scheduler.truncation_align_size) == ("long", None)
    assert scheduler.alignments[0] > 10**9, "no other prompt is cut into chunks meanwhile"
    assert scheduling.chunk_waits is None


def test_a_prompt_in_chunks_goes_on_where_no_other_can_enter(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling(last={"long"}))
    assert prefill(Scheduler("long", ["huge"])) == ["long", "huge"]


def test_with_adapters_no_request_enters_between_two_chunks(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling({"long"}))
    scheduler = Scheduler("long", ["short"], ready=["new"], fitting={"short"}, enable_lora=True)
    assert prefill(scheduler) is None
    assert scheduler.waiting_queue == ["short", "new"]


def test_without_a_policy_of_evenkeel_the_engine_decides(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", None)
    assert prefill(Scheduler("long")) == ["long"]


def test_a_step_compares_what_the_engine_holds_before_its_pass(monkeypatch):
    scheduling = Scheduling()
    monkeypatch.setattr(hooks, "_scheduling", scheduling)
    hooks.new_prefill(
        Scheduler.get_new_batch_prefill, Scheduler("long", ["short"]), Batch(reqs=["r"])
    )
    assert scheduling.looked == [(["short"], ["r"], "long")]


@pytest.mark.parametrize("paused", [True, False])
def test_a_paused_engine_compares_what_it_holds_though_no_pass_follows(monkeypatch, paused):
    scheduling = Scheduling()
    monkeypatch.setattr(hooks, "_scheduling", scheduling)
    scheduler = SimpleNamespace(
        _engine_paused=paused,
        running_batch=Batch(reqs=["r"]),
        chunked_req=None,
        waiting_queue=["w"],
    )
    assert hooks.process_input(scheduler, ["new"]) == ((scheduler, ["new"]), {})
    assert scheduling.looked == [(["w"], ["r"], None)] * paused


def test_requests_that_the_engine_stages_are_in_flight():
    staged = SimpleNamespace(ack_staging_queue=[SimpleNamespace(req="staged")])
    scheduler = SimpleNamespace(collect_inflight_reqs=lambda: {"runs"}, hisparse_coordinator=staged)
    assert hooks._in_flight(scheduler) == {"runs", "staged"}
    del scheduler.hisparse_coordinator
    assert hooks._in_flight(scheduler) == {"runs"}


def test_beside_an_empty_batch_a_prompt_in_chunks_goes_on(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling({"long"}))
    assert prefill(Scheduler("long"), running=0) == ["long"]


@pytest.mark.parametrize(
    ("tokens", "entered", "want"),
    [
        (1000, [], None),
        (2049, [], AdmissionResult.HELD),
        (2049, ["another"], AdmissionResult.LATER),
        (1936, [], None),
        (1937, [], AdmissionResult.LATER),
    ],
    ids=["enters", "needs chunks", "no room in this pass", "just enough memory", "memory"],
)
def test_what_enters_between_two_chunks_leaves_memory_for_the_rest(tokens, entered, want):
    chunk = SimpleNamespace(
        origin_input_ids=[1] * 9000,
        output_ids=[],
        prefix_len=2000,
        sampling_params=SimpleNamespace(max_new_tokens=20_000),
    )
    asked = SimpleNamespace(
        origin_input_ids=[1] * (tokens + 50),
        output_ids=[],
        prefix_len=50,
        sampling_params=SimpleNamespace(max_new_tokens=100),
    )
    adder = SimpleNamespace(
        page_size=16, rem_chunk_tokens=2048, rem_total_tokens=13_165, can_run_list=entered
    )
    assert refusal_beside(adder, asked, chunk) is want


@pytest.mark.parametrize(("free_tokens", "want"), [(1166, 1), (1165, 2), (1000, 167), (9000, 1)])
def test_a_request_misses_what_brings_it_over_the_free_memory(free_tokens, want):
    asked = SimpleNamespace(
        origin_input_ids=[1] * 1100,
        output_ids=[],
        prefix_len=50,
        sampling_params=SimpleNamespace(max_new_tokens=100),
    )
    adder = SimpleNamespace(page_size=16, rem_total_tokens=free_tokens)
    assert missing_tokens(adder, asked) == want


@pytest.mark.parametrize(("full", "wants"), [(False, True), (True, False), (True, True)])
def test_a_claim_opens_a_full_batch_for_a_pass(monkeypatch, full, wants):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling(wants=wants))
    batch = Batch(batch_is_full=full)
    hooks.new_prefill(Scheduler.get_new_batch_prefill, Scheduler("long"), batch)
    assert batch.batch_is_full is (full and not wants)


@dataclass
class Giving:
    """Requests that give memory back, and those of clients above their shares."""

    of: list[str]
    above: set[str]

    def giving(self) -> list[str]:
        return self.of

    def is_above_share(self, request: str) -> bool:
        return request in self.above

    def reserved_tokens(self) -> int:
        return 0


def test_memory_is_short_until_those_who_give_it_back_are_retracted(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Giving(["d", "b"], {"a", "b", "d"}))
    batch = SimpleNamespace(reqs=["a", "b", "c", "d"])
    order = hooks.retraction_order(lambda reqs: [2, 1, 3, 0], batch.reqs)
    assert order == [2, 0, 1, 3]
    checked = [
        hooks.decode_memory(lambda batch, selected: True, batch, order[:left]) for left in (4, 3, 2)
    ]
    assert checked == [False, False, True]
    assert hooks.decode_memory(lambda batch, selected: True, batch) is False
    assert (
        hooks.decode_memory(lambda batch, selected: True, batch, [3]) is True
    )  # the last one stays
    hooks._scheduling.of.clear()
    assert hooks.decode_memory(lambda batch, selected: False, batch) is False
    assert hooks.decode_memory(lambda batch, selected: True, batch) is True


def chunked(free: int) -> Any:
    """A scheduler with a prompt of 1000 tokens in chunks, of which 600 are computed."""
    chunk = SimpleNamespace(
        origin_input_ids=[1] * 1000, output_ids=[], prefix_len=600, extend_end=0
    )
    cache = SimpleNamespace(supports_mamba=lambda: False, evictable_size=lambda: free // 2)
    return Scheduler(
        chunk,
        is_hybrid_swa=False,
        chunked_prefill_size=128,
        token_to_kv_pool_allocator=SimpleNamespace(
            available_size=lambda: free - free // 2, page_size=16
        ),
        tree_cache=cache,
    )


@pytest.mark.parametrize(
    ("free", "running", "goes_on"), [(144, 1, True), (143, 1, False), (0, 0, True)]
)
def test_a_chunk_waits_while_its_memory_is_not_free_and_others_decode(
    monkeypatch, free, running, goes_on
):
    scheduling = SimpleNamespace(
        should_wait=lambda *_: False,
        wants_pass=lambda: False,
        must_wait=lambda one: False,
        look=lambda *_: None,
        end_pass=lambda: None,
    )
    monkeypatch.setattr(hooks, "_scheduling", scheduling)
    scheduler = chunked(free)
    plan = hooks.new_prefill(Scheduler.get_new_batch_prefill, scheduler, Batch(running))
    assert (plan.batch_to_run == [scheduler.chunked_req]) == goes_on


@pytest.mark.parametrize(
    ("free", "ok"), [(400 + 16 + 2 * 16, True), (400 + 16 + 2 * 16 - 1, False)]
)
def test_decode_steps_leave_the_memory_for_the_rest_of_a_prompt_in_chunks(monkeypatch, free, ok):
    scheduler = chunked(free)
    reserved = SimpleNamespace(giving=list, reserved_tokens=lambda: reserved_tokens(scheduler))
    monkeypatch.setattr(hooks, "_scheduling", reserved)
    batch = SimpleNamespace(
        reqs=["a", "b"],
        token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
        tree_cache=scheduler.tree_cache,
    )
    assert hooks.decode_memory(lambda *_: True, batch) is ok
    assert hooks.decode_memory(lambda *_: True, batch, [1]) is True, "the last one stays"
    scheduler.chunked_req.extend_end = 800  # allocated, not computed yet
    assert reserved_tokens(scheduler) == 208 + 16
    scheduler.is_hybrid_swa = True
    assert reserved_tokens(scheduler) == 0


@pytest.mark.parametrize(("order", "want"), [("", "short"), ("LongestMatch", "long")])
def test_the_policy_has_the_order_of_the_environment(monkeypatch, order, want):
    monkeypatch.setattr(hooks.seams, "matcher", lambda: None)
    scheduler = SimpleNamespace(server_args=SimpleNamespace(tp_size=1, pp_size=1), tree_cache=None)
    settings = EngineSettings.from_environment({"EVENKEEL_ORDER": order})
    policy = hooks.make_scheduling("DLPM", settings, scheduler).policy
    arrive(policy, request("long", extend=80_000, matched=9), request("short"))
    assert admit(policy)[0] == want
