"""Shared memory inside the plug-in (R16), by its real hooks around SGLang's scheduler: claims, retractions, and books that are empty afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from evenkeel_contract.reportbook import Accounts
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.memory_shares import CLAIM_S, LOOK_S, MemoryShares
from evenkeel_plugin.scheduling import Scheduling
from evenkeel_sglang import hooks

from tests.support.chunked_prefills import Req, Sampling, Scheduler

POOL_TOKENS, INPUT, LONG, STEP_S = 2048, 10, 1000, 0.02


@dataclass
class Engine:
    """A scheduler with the plug-in, on a clock of its own."""

    now_s: float = 0.0
    requests: dict[str, Req] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.memory = MemoryShares(POOL_TOKENS)
        self.scheduling = Scheduling(
            Dlpm(rules=DeficitRules(quantum=100)),
            Accounts(LinearCost()),
            match=lambda request: 0,
            memory=self.memory,
            clock=lambda: self.now_s,
        )
        self.scheduling.reserved_ratio = lambda: 0.25
        self.scheduler = Scheduler(
            self.scheduling,
            pool_tokens=POOL_TOKENS,
            chunk_tokens=POOL_TOKENS,
            most_running=16,
            no_room=lambda rid: None,
        )

    def ask(self, name: str, client: str, output_tokens: int, input_tokens: int = INPUT) -> Req:
        words = range(10_000 * len(self.requests), 10_000 * len(self.requests) + input_tokens)
        made = Req(name, f"ek1;ns/{client}/{client};w=1,1", words, Sampling(output_tokens))
        self.requests[name] = made
        self.scheduler.waiting_queue.append(made)
        return made

    def step(self) -> bool:
        seconds = self.scheduler.step(prefill_s=lambda _: STEP_S, decode_s=lambda _: STEP_S)
        self.now_s += seconds
        return seconds > 0

    def run(self) -> list[str]:
        """To the end; names in the order of their ends."""
        ended: list[str] = []
        while self.step():
            done = [name for name, one in self.requests.items() if one.finished()]
            ended += [name for name in done if name not in ended]
        return ended

    @property
    def running(self) -> list[str]:
        return [one.rid for one in self.scheduler._running.reqs]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    made = Engine()
    monkeypatch.setattr(hooks, "_scheduling", made.scheduling)
    yield made


def test_a_chat_gets_room_after_its_claim_and_all_books_are_empty(engine: Engine) -> None:
    for number in range(2):
        engine.ask(f"long-{number}", "holder", LONG)
    while len(engine.requests["long-0"].output_ids) < 700:
        assert engine.step()
    chat = engine.ask("chat", "chat", 5, input_tokens=60)
    asked_s = engine.now_s
    while chat.rid not in engine.running:
        assert engine.step()
    waited_s = engine.now_s - asked_s
    assert CLAIM_S <= waited_s < CLAIM_S + 3 * LOOK_S
    assert engine.running == ["long-0", "chat"], "of equal losses the last to begin goes"
    assert engine.run() == ["chat", "long-0", "long-1"]
    rows, _, _ = engine.scheduling.snapshot()
    holder = rows["ns/holder/holder"]
    assert holder.output_tokens == 2 * LONG
    assert holder.extend_tokens > 2 * INPUT + 700
    assert holder.service == 2 * (INPUT + 2 * LONG), "what was computed again was paid twice"
    assert not engine.memory._tenants.members
    assert not engine.scheduling._giving
    assert not engine.scheduling._given


def test_each_claim_is_met_anew_and_ends_with_its_pass(engine: Engine) -> None:
    for number in range(2):
        engine.ask(f"long-{number}", "holder", LONG)
    while len(engine.requests["long-0"].output_ids) < 600:
        assert engine.step()
    for number in range(2):
        chat = engine.ask(f"chat-{number}", "chat", 100, input_tokens=60)
        while not chat.finished():
            assert engine.step()
        assert not engine.requests["long-0"].finished()
    assert engine.run()[-1] == "long-1"
    assert engine.scheduling.snapshot()[0]["ns/holder/holder"].service == 2 * (INPUT + 2 * LONG)


def test_a_client_within_its_share_is_never_retracted(engine: Engine) -> None:
    engine.ask("own", "a", LONG)
    engine.ask("other", "b", LONG)
    while len(engine.requests["own"].output_ids) < 500:
        assert engine.step()
    engine.ask("chat", "c", 5, input_tokens=100)
    # Shares of 682: nobody holds more for the next 180 steps.
    for _ in range(150):
        assert engine.step()
        assert engine.running == ["own", "other"]
    assert engine.run()[0] == "chat"


def test_who_gave_back_borrows_idle_memory_again_and_is_left_alone(engine: Engine) -> None:
    engine.ask("tiny", "other", 700)
    for number in range(2):
        engine.ask(f"long-{number}", "holder", 600)
    while len(engine.requests["long-0"].output_ids) < 530:
        assert engine.step()
    chat = engine.ask("chat", "chat", 5, input_tokens=150)
    starts, was_running = 0, True
    while not engine.requests["long-0"].finished():
        assert engine.step()
        is_running = "long-1" in engine.running
        starts, was_running = starts + (is_running and not was_running), is_running
    assert chat.finished()
    # The holder is above its half of the pool with both, and no other client lacks memory.
    assert starts == 1
    assert was_running


def test_a_giver_that_ends_before_it_waits_leaves_nothing_behind(engine: Engine) -> None:
    for number in range(2):
        engine.ask(f"long-{number}", "holder", LONG)
    while len(engine.requests["long-0"].output_ids) < 700:
        assert engine.step()
    chat = engine.ask("chat", "chat", 5, input_tokens=60)
    while "long-1" in engine.running:
        assert engine.step()
    gone = engine.requests["long-1"]
    engine.scheduler.waiting_queue.remove(gone)
    gone.output_ids += [7] * LONG  # it has ended
    engine.run()
    assert chat.finished()
    assert not engine.scheduling._given
