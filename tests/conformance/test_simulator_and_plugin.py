"""The engine model and the SGLang plug-in side by side: both run one queue, and answer the same policy about each request that it proposes.

The model is `evenkeel_simulator.engine`. The plug-in's hooks run inside `tests/support/chunked_prefills.py`. Only the room's answers are
compared. Those for a whole client come from `EngineTime`, which both share; the plug-in asks for them a request earlier.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
from evenkeel_contract.enginesettings import ISOLATION
from evenkeel_contract.reportbook import Accounts
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.engine_time import EngineTime
from evenkeel_plugin.scheduling import Scheduling
from evenkeel_sglang import hooks
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.iteration import MS
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import CostProfile
from evenkeel_simulator.engine.request import EngineRequest

from tests.support.chunked_prefills import Req, Sampling, Scheduler

POOL_TOKENS, RUNNING, QUANTUM = 2048, 16, 500
SHORT_TOKENS, LONG_TOKENS, CHUNK_TOKENS = 250, 1500, 256
QUEUES = range(10)
PROFILE = CostProfile(
    prefill_ms=8,
    prefill_token_ms=0.25,
    decode_ms=16,
    decode_request_ms=0.5,
    decode_kv_token_ms=0.0,
    kv_tokens=POOL_TOKENS,
)
ROOM = {
    AdmissionResult.ADMITTED,
    AdmissionResult.NO_ROOM,
    AdmissionResult.LATER,
    AdmissionResult.HELD,
}
Answers = list[tuple[str, AdmissionResult]]
Turns = list[Answers]
"""The answers of each turn of the engine's loop: a prefill or a decode step."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a queue."""

    id: str
    client: str
    input_tokens: int
    output_tokens: int


def queue(seed: int, *, longest: int) -> list[Asked]:
    """Three clients' requests, mixed. Prompts have `longest` tokens at most."""
    rng = random.Random(seed)
    return [
        Asked(f"r{number}", rng.choice("abc"), rng.randrange(8, longest), rng.randrange(1, 60))
        for number in range(40)
    ]


class Recorded(Dlpm):
    """DLPM that writes down the room's answers."""

    def __init__(self) -> None:
        super().__init__(rules=DeficitRules(quantum=QUANTUM))
        self.answers: Answers = []

    def admissions(self, now_s: float) -> Generator[Request, AdmissionResult, None]:
        conversation = super().admissions(now_s)
        wanted = next(conversation, None)
        while wanted is not None:
            answer = yield wanted
            self.told(wanted.id, answer)
            try:
                wanted = conversation.send(answer)
            except StopIteration:
                return

    def told(self, id: str, answer: AdmissionResult) -> None:
        if answer in ROOM:
            self.answers.append((id, answer))

    def take(self) -> Answers:
        """The answers since the last call."""
        taken, self.answers = self.answers, []
        return taken


def of_the_model(asked: Sequence[Asked], *, chunk_tokens: int) -> Turns:
    policy = Recorded()
    config = EngineConfig(
        max_running=RUNNING,
        prefill_tokens=chunk_tokens,
        prefix_cache=False,  # no prompt here shares a prefix
        admission=AdmissionRule.HISTORY,
    )
    engine = Engine(config, policy, PROFILE)
    for one in asked:
        request = EngineRequest(
            id=one.id,
            client=f"ns/{one.client}/{one.client}",
            tenant=f"ns/{one.client}",
            arrival_s=0.0,
            input_tokens=one.input_tokens,
            max_output_tokens=one.output_tokens,
            target_output_tokens=one.output_tokens,
            fixed_length=True,
        )
        engine.submit(request, 0.0)
    turns, now_s = [], 0.0
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
        turns.append(policy.take())
    return turns


def of_the_plug_in(asked: Sequence[Asked], *, chunk_tokens: int) -> Turns:
    policy, now_s = Recorded(), 0.0
    scheduling = Scheduling(
        policy,
        Accounts(LinearCost()),
        match=lambda request: 0,
        time=EngineTime(isolation=ISOLATION),
        clock=lambda: now_s,
    )
    scheduler = Scheduler(
        scheduling,
        pool_tokens=POOL_TOKENS,
        chunk_tokens=chunk_tokens,
        most_running=RUNNING,
        no_room=lambda rid: policy.told(rid, AdmissionResult.NO_ROOM),
    )
    for number, one in enumerate(asked):
        words = range(10_000 * number, 10_000 * number + one.input_tokens)
        key = f"ek1;ns/{one.client}/{one.client};w=1,1"
        scheduler.waiting_queue.append(Req(one.id, key, words, Sampling(one.output_tokens)))
    turns = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks, "_scheduling", scheduling)
        while seconds := scheduler.step(prefill_s=prefill_s, decode_s=decode_s):
            now_s += seconds
            turns.append(policy.take())
    return turns


def prefill_s(tokens: int) -> float:
    return (PROFILE.prefill_ms + PROFILE.prefill_token_ms * tokens) * MS


def decode_s(requests: int) -> float:
    return PROFILE.decode_ms * MS + PROFILE.decode_request_ms * MS * requests


@cache
def both(seed: int, *, longest: int, chunk_tokens: int) -> tuple[Turns, Turns]:
    """The model's answers, and the plug-in's."""
    asked = queue(seed, longest=longest)
    return (
        of_the_model(asked, chunk_tokens=chunk_tokens),
        of_the_plug_in(asked, chunk_tokens=chunk_tokens),
    )


def answers_of(turns: Turns) -> set[AdmissionResult]:
    return {answer for turn in turns for _, answer in turn}


@pytest.mark.parametrize("seed", QUEUES)
def test_model_and_plug_in_answer_alike_where_no_prompt_is_cut(seed: int) -> None:
    model, plug_in = both(seed, longest=SHORT_TOKENS, chunk_tokens=POOL_TOKENS)
    assert model == plug_in
    assert answers_of(plug_in) == {AdmissionResult.ADMITTED, AdmissionResult.NO_ROOM}


def test_queues_with_long_prompts_bring_every_answer() -> None:
    turns = [both(seed, longest=LONG_TOKENS, chunk_tokens=CHUNK_TOKENS)[1] for seed in QUEUES]
    assert set().union(*map(answers_of, turns)) == ROOM


@pytest.mark.parametrize("seed", QUEUES)
def test_model_and_plug_in_answer_alike_about_prompts_in_chunks(seed: int) -> None:
    model, plug_in = both(seed, longest=LONG_TOKENS, chunk_tokens=CHUNK_TOKENS)
    assert model == plug_in
