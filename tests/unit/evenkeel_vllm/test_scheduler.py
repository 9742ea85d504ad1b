"""The policy in charge of vLLM's queue, step by step, over a fake of vLLM's scheduler (`tests.support.fake_vllm`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from evenkeel_contract.kvevents import BlockStored
from evenkeel_vllm import seams
from prometheus_client import REGISTRY

from tests.support import fake_vllm
from tests.support.fake_vllm import AsyncScheduler, Request, RequestStatus
from tests.support.reporting import report_of
from tests.unit.evenkeel_vllm.conftest import QUANTUM, Engine, request

MakeEngine = Callable[..., Engine]


def flood(client: str, count: int, *, base: int) -> list[Request]:
    """Requests of one client that share no prefix."""
    return [request(f"{client}{n}", client, base=base + 1000 * n) for n in range(count)]


# Who enters, and what it is charged.


def test_a_pass_charges_each_admission_before_it_proposes_the_next(engine: MakeEngine) -> None:
    loop = engine(seqs=4)
    loop.send(*flood("a", 3, base=0), *flood("b", 2, base=9000))
    # 60 tokens each against a quantum of 100: two of a, then a is in debt and b's turn comes. Then a waits alone.
    assert loop.step() == ["a0", "a1", "b0", "b1"]
    assert (loop.deficit("a"), loop.deficit("b")) == (2 * QUANTUM - 2 * 62, QUANTUM - 2 * 62)


def test_only_what_the_cache_did_not_hold_is_charged(engine: MakeEngine) -> None:
    loop = engine(seqs=3)
    loop.scheduler.kv_cache_manager.cached = {"a0": 48, "a1": 16}
    loop.send(*flood("a", 2, base=0))
    assert loop.step() == ["a0", "a1"], "the longest match first"
    served = loop.totals()
    assert (served.extend_tokens, served.cached_tokens, served.requests) == (12 + 44, 48 + 16, 2)


def test_a_prompt_in_chunks_is_charged_whole_when_it_enters(engine: MakeEngine) -> None:
    loop = engine(budget=25)
    loop.scheduler.kv_cache_manager.cached = {"a0": 16}
    loop.send(request("a0", tokens=80))
    assert loop.step() == ["a0"]
    served = loop.totals()
    assert (served.extend_tokens, served.cached_tokens, served.output_tokens) == (64, 16, 0)
    loop.step()
    assert loop.totals().output_tokens == 0
    loop.step()
    assert (loop.totals().extend_tokens, loop.totals().output_tokens) == (64, 1)


def test_output_is_charged_once_per_token_and_totals_add_up(engine: MakeEngine) -> None:
    loop = engine()
    loop.send(*flood("a", 2, base=0))
    loop.step()
    loop.step(stop=["a0", "a1"])
    served = loop.totals()
    assert (served.extend_tokens, served.output_tokens, served.requests) == (120, 4, 2)
    assert (served.service, served.running) == (120 + 2 * 4, 0)
    # The identity: served = quanta given − what is left (DLPM, Theorem 4.1's proof).
    assert (served.service + loop.deficit()) % QUANTUM == 0
    assert not loop.scheduler.scheduling.busy


def test_a_request_that_does_not_fit_waits_and_nobody_is_refilled_past_it(
    engine: MakeEngine,
) -> None:
    loop = engine(seqs=4, memory=100)
    spent, large = request("b0", "b", tokens=50), request("a0", tokens=70, base=5000)
    loop.send(spent, large, request("b1", "b", tokens=90, base=9000))
    assert loop.step() == ["b0"]
    for _ in range(2):
        assert loop.step() == ["b0"]
    assert (loop.waiting("a"), loop.waiting("b")) == (1, 1)
    assert loop.scheduler.scheduling.snapshot()[0].get("ns/a/a") is None
    loop.abort("b0")
    assert loop.step() == ["a0"]
    assert loop.waiting("a") == 0


def test_a_full_batch_lets_nobody_enter_and_all_still_wait(engine: MakeEngine) -> None:
    loop = engine(seqs=1)
    loop.send(*flood("a", 3, base=0))
    for _ in range(2):
        assert loop.step() == ["a0"]
    assert len(loop.scheduler.waiting) == loop.waiting() == 2
    assert [one.request_id for one in loop.scheduler.waiting] == ["a1", "a2"]


def test_requests_that_share_what_is_being_computed_wait_for_it(engine: MakeEngine) -> None:
    loop = engine(seqs=3)
    loop.send(request("a0"), request("b0", "b"), request("c0", "c", base=500))
    assert loop.step() == ["a0", "c0"]
    loop.scheduler.kv_cache_manager.cached = {"b0": 48}
    assert loop.step() == ["a0", "c0", "b0"]
    assert loop.totals("b").cached_tokens == 48


def test_a_prompt_that_is_computed_holds_those_that_share_it_for_no_longer(
    engine: MakeEngine,
) -> None:
    loop = engine(budget=40)
    loop.send(request("a0"), request("b0", "b", tokens=96))
    assert loop.step() == ["a0"]
    assert loop.scheduler.waiting, "outside a step, whoever waits counts"
    assert loop.step() == ["a0"]
    assert loop.step() == ["a0", "b0"]
    assert loop.totals("b").cached_tokens == 0, "the cache has lost it meanwhile"


# Requests that come back.


def test_a_request_without_a_slot_for_its_adapter_waits_and_others_enter(
    engine: MakeEngine,
) -> None:
    loop = engine(seqs=3)
    loop.scheduler.without_slot = {"full"}
    adapter = SimpleNamespace(lora_name="full")
    loop.send(request("a0", lora_request=adapter), request("b0", "b", base=500))
    assert loop.step() == ["b0"]
    assert (loop.waiting("a"), len(loop.scheduler.waiting)) == (1, 1)
    loop.scheduler.without_slot = set()
    assert loop.step() == ["b0", "a0"]
    assert loop.totals("a").requests == 1


def test_a_preempted_request_pays_for_what_it_computes_again(engine: MakeEngine) -> None:
    loop = engine(memory=122)
    loop.send(request("a0", max_tokens=9), request("b0", "b", base=500, max_tokens=9))
    assert loop.step() == ["a0", "b0"]
    assert loop.step() == ["a0", "b0"]
    assert loop.step() == ["a0"]
    assert loop.step() == ["a0"]
    assert (loop.waiting("b"), loop.totals("b").running) == (1, 0)
    loop.abort("a0")
    assert loop.step() == ["b0"]
    served = loop.totals("b")
    assert served.extend_tokens == 60 + 62, "the second time with the tokens that it had produced"
    assert (served.output_tokens, served.running) == (3, 1)


def test_requests_aborted_in_queue_and_batch_leave_with_what_they_got(engine: MakeEngine) -> None:
    loop = engine(seqs=1)
    loop.send(*flood("a", 2, base=0))
    loop.step()
    loop.abort("a1", "unknown")
    assert loop.waiting() == 0
    loop.abort("a0")
    served = loop.totals()
    assert (served.aborted, served.aborted_tokens, served.running) == (1, 1, 0)
    assert not loop.scheduler.scheduling.busy
    assert not loop.scheduler.waiting


def test_a_step_that_fails_charges_nobody_and_the_next_one_goes_on(
    engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = engine()
    loop.send(request("a0"))

    def fails(scheduler: Any, throttle_prefills: bool = False) -> None:
        assert scheduler.waiting.peek_request().request_id == "a0"
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no memory"):
        patch.setattr(AsyncScheduler, "schedule", fails)
        loop.schedule()
    assert loop.waiting() == 1
    assert loop.step() == ["a0"]
    assert loop.totals().requests == 1


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_no_request_is_lost_and_totals_add_up(
    engine: MakeEngine, seed: int
) -> None:
    rng = Random(seed)
    loop = engine(seqs=4, budget=150, memory=400)
    scheduler, sent = loop.scheduler, list[Request]()
    for number in range(80):
        for index in range(rng.randrange(3)):
            tokens, base = rng.choice([20, 60, 200]), rng.randrange(9) * 500
            sent.append(request(f"{number}-{index}", rng.choice("ab"), tokens=tokens, base=base))
            loop.send(sent[-1])
        known = list(scheduler.requests)
        if known and rng.random() < 0.2:
            loop.abort(rng.choice(known))
        loop.step(stop=[one for one in known if rng.random() < 0.1])
        held = {one.request_id for one in (*scheduler.waiting, *scheduler.running)}
        assert held == set(scheduler.requests)
    for _ in range(1000):
        loop.step()
    assert all(one.is_finished() for one in sent)
    assert not scheduler.scheduling.busy
    totals = scheduler.scheduling.snapshot()[0].values()
    assert sum(one.output_tokens for one in totals) == sum(len(r.output_token_ids) for r in sent)
    assert {one.running for one in totals} == {0}


# What is counted and told.


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, logger="vllm.evenkeel"):
        yield caplog


def test_a_request_that_enters_unproposed_is_counted_but_not_charged(
    engine: MakeEngine, log: pytest.LogCaptureFixture
) -> None:
    loop = engine()
    stranger = request("x", status=RequestStatus.RUNNING)
    loop.scheduler.requests["x"] = stranger
    loop.scheduler.running.append(stranger)
    before = counted("evenkeel_engine_policy_bypassed_total")
    loop.step()
    loop.step()
    assert counted("evenkeel_engine_policy_bypassed_total") == before + 1
    assert log.text.count("that the policy had not proposed") == 1
    assert loop.scheduler.scheduling.snapshot()[0] == {}
    # Preempted, it waits for the policy like any other.
    loop.scheduler.running.remove(stranger)
    stranger.status, stranger.num_computed_tokens = RequestStatus.PREEMPTED, 0
    loop.scheduler.waiting.prepend_request(stranger)
    assert loop.step() == ["x"]
    assert loop.totals().requests == 1


def test_requests_without_a_readable_key_are_counted_and_logged_by_reason(
    engine: MakeEngine, log: pytest.LogCaptureFixture
) -> None:
    loop = engine(seqs=9)
    before = counted("evenkeel_engine_client_key_refused_total", reason="missing")
    for number in range(3):
        loop.send(Request(f"m{number}", None, [number] * 3))
    loop.send(Request("n", "nonsense", [9] * 3))
    loop.step()
    after = counted("evenkeel_engine_client_key_refused_total", reason="missing")
    assert after == before + 3
    assert log.text.count("(missing)") == log.text.count("(malformed)") == 1


def test_the_environment_names_the_policy_and_without_it_dlpm_orders(
    engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    assert engine().scheduler.scheduling.policy.name == "DLPM"
    monkeypatch.setenv("EVENKEEL_REPLICA_POLICY", "FCFS")
    loop = engine(seqs=3)
    loop.send(*flood("a", 3, base=0), *flood("b", 1, base=9000))
    assert loop.step() == ["a0", "a1", "a2"]
    assert counted("evenkeel_engine_policy_active", policy="FCFS") == 1
    assert "policy FCFS orders the waiting queue; no reports" in log.text


def test_reports_have_the_clients_and_the_incarnation(
    engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EVENKEEL_REPORTS_PORT", "0")
    monkeypatch.setenv("EVENKEEL_INCARNATION", "one")
    loop = engine()
    loop.send(request("a0"))
    loop.step()
    port = int(log.text.split("reports on port ")[1].split()[0])
    report = report_of(port)
    assert (report.incarnation, report.policy, report.quantum) == ("one", "DLPM", QUANTUM)
    assert [(one.client, one.extend_tokens) for one in report.clients] == [("ns/a/a", 60)]


def test_kv_events_reach_vllms_publisher_and_the_pages_held(engine: MakeEngine) -> None:
    scheduler = engine().scheduler
    recorded = scheduler.kv_event_publisher
    stored = BlockStored(block_hashes=[7], parent_block_hash=None, token_ids=[], block_size=16, lora_id=None)  # fmt: skip
    batch = SimpleNamespace(ts=1.5, events=[stored])
    recorded.publish(batch)
    assert scheduler.pages.take() == (1, 1.5, 16, [7])
    assert recorded.batches == [batch]
    assert recorded.topic == "kv-events"


# A vLLM that does not fit.


@pytest.mark.parametrize("environment", [{}, {"EVENKEEL_ON_MISMATCH": "Refuse", "EVENKEEL_REPORTS_PORT": "0"}])  # fmt: skip
def test_without_a_router_or_by_its_setting_a_misfit_ends_the_start(
    engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(seams, "installed", lambda: "9.9")
    with pytest.raises(seams.SeamError, match=r"version 9\.9 is not tested.*Refusing to start"):
        engine()


def test_a_misfit_behind_a_router_gets_vllms_own_scheduler_and_says_why(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EVENKEEL_REPORTS_PORT", "0")
    monkeypatch.setattr(seams, "installed", lambda: "9.9")
    made = plugin.FairScheduler(fake_vllm.config())
    assert type(made) is AsyncScheduler
    port = int(log.text.split("by the answers on port ")[1].split(".")[0])
    reason = "version 9.9 is not tested with this plug-in"
    assert report_of(port).inactive == reason
    assert counted("evenkeel_engine_plugin_inactive", reason=reason) == 1
    assert counted("evenkeel_engine_policy_active", policy="none") == 0
