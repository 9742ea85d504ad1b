"""A client that always decodes keeps its share of engine time, whatever prompts others send (design R13).

Let P be the longest prefill. While the client lags, only clients without a lead prefill, and each gets a lead of P at most. So its
lag is at most P for each of the others.
"""

from __future__ import annotations

from itertools import count
from random import Random

import pytest
from evenkeel_fairshare.replica import engine_time, time_levels
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from evenkeel_fairshare.replica.engine_time import EngineTime, PassTurns
from hypothesis import given
from hypothesis import strategies as st

from tests.support.engine_figures import figures
from tests.support.examples import examples

LONGEST_S = 0.2
STEP_S = 0.02
VICTIM = "ns/victim/victim"


def request(client: str, number: int, weight: float) -> Request:
    return Request(
        id=f"{client}-{number}",
        client=client,
        tenant=client.rpartition("/")[0],
        arrival_s=0.0,
        input_tokens=100,
        max_output_tokens=100,
        tenant_weight=weight,
    )


@given(
    seed=st.integers(0, 10**6),
    weights=st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=5),
    greed=st.sampled_from([0.1, 0.5, 1.0]),
)
def test_a_decoding_client_lags_by_one_prefill_for_each_other_client(
    seed: int, weights: list[float], greed: float
) -> None:
    rng, time = Random(seed), EngineTime()
    victim = request(VICTIM, 0, 1.0)
    time.open(victim)
    time.starts(victim)
    victim.output_tokens = 1
    time.decodes(victim)
    rivals = [request(f"ns/rival-{n}/rival", n, weight) for n, weight in enumerate(weights)]
    for rival in rivals:
        time.open(rival)
    share = 1.0 / (1.0 + sum(weights))
    elapsed_s = progress_s = behind_s = 0.0
    waited = 0
    for _ in range(600):
        rival = rng.choice(rivals)
        if rng.random() < greed and not time.must_wait(rival):
            seconds = rng.uniform(0.0, LONGEST_S)
            time.starts(rival)
            time.elapsed(seconds, prefilled={rival: 100}, decoded=False)
            time.stops(rival)
        else:
            waited += time.must_wait(rival)
            seconds = STEP_S
            time.elapsed(seconds, prefilled={}, decoded=True)
            progress_s += seconds
        elapsed_s += seconds
        # Over any interval until now: the shortfall now, less the least at any time before.
        shortfall_s = share * elapsed_s - progress_s
        behind_s = min(behind_s, shortfall_s)
        assert shortfall_s - behind_s <= LONGEST_S * len(rivals) + 1e-6
    if greed == 1.0:
        assert waited > 0


@given(seed=st.integers(0, 10**6), isolation=st.sampled_from([0.0, 0.5, 3.0]))
def test_some_request_may_always_go_on(seed: int, isolation: float) -> None:
    """If no request decodes, a prefill that has begun does not wait: no capacity is idle."""
    rng, time = Random(seed), EngineTime(isolation=isolation)
    waiting: list[Request] = []
    prefilling: list[Request] = []
    decoding: list[Request] = []
    decided = 0
    for number in range(300):
        if rng.random() < 0.3:
            waiting.append(request(f"ns/t{rng.randrange(4)}/c", number, rng.choice([1.0, 2.0])))
            time.open(waiting[-1])
        allowed = [one for one in waiting if not time.must_wait(one)]
        if allowed and rng.random() < 0.5:
            waiting.remove(allowed[0])
            prefilling.append(allowed[0])
            time.starts(allowed[0])
        going = [one for one in prefilling if not time.must_wait(one)]
        assert going or decoding or not prefilling
        assert allowed or decoding or prefilling or not waiting
        decided += bool(prefilling) and not decoding
        if going:
            one = rng.choice(going)
            time.elapsed(rng.uniform(0.01, 0.5), prefilled={one: 50}, decoded=False)
            if rng.random() < 0.5:
                prefilling.remove(one)
                decoding.append(one)
                one.output_tokens = 1
                time.decodes(one)
        elif decoding:
            time.elapsed(rng.uniform(0.01, 0.05), prefilled={}, decoded=True)
            for one in decoding:
                one.output_tokens += 1
            if rng.random() < 0.3:
                ended = decoding.pop(rng.randrange(len(decoding)))
                time.stops(ended)
                time.close(ended)


@pytest.mark.parametrize("isolation", [0.0, 0.3, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_run_of_decode_steps_is_the_same_at_once_and_step_by_step(
    seed: int, isolation: float
) -> None:
    """Within a tenth of a step: where the trend of a lag turns within a run, a run does not see it."""
    rng, weights = Random(seed), (0.5, 1.0, 3.0)
    pair = once, single = EngineTime(isolation=isolation), EngineTime(isolation=isolation)
    first = request("ns/first/c", 0, 1.0)
    _begin(pair, first, 0.1, decoded=False)
    for time in pair:  # so that both know the times of steps
        for n in range(10):
            time.decoded([0.01 + 1e-5 * (101 + n + 192)])
    _end(pair, first)
    batch: list[Request] = []
    for number in range(1, 200):
        if len(batch) < 12 and rng.random() < 0.5:
            which = rng.randrange(6)
            one = request(f"ns/t{which % 3}/c{which}", number, weights[which % 3])
            _begin(pair, one, rng.uniform(0.01, 0.5), decoded=bool(batch))
            for running in batch:
                running.output_tokens += 1
            batch.append(one)
        elif batch:
            _decode(once, single, batch, steps=rng.randint(1, 40))
            if rng.random() < 0.5:
                _end(pair, batch.pop(rng.randrange(len(batch))))
        left, right = figures(once), figures(single)
        assert left.keys() == right.keys()
        for name, found in left.items():
            assert found == pytest.approx(right[name], abs=STEP_S / 10), name


@given(seed=st.integers(0, 10**6), isolation=st.sampled_from([0.0, 0.3, 0.5, 3.0]))
@examples(25)
def test_comparisons_that_save_work_change_no_answer(seed: int, isolation: float) -> None:
    answers = _answers(seed, isolation)
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine_time, time_levels):
            patch.setattr(module, "CLEARLY", 0.0)  # nothing is clear at a glance
        assert _answers(seed, isolation) == answers


def _answers(seed: int, isolation: float) -> list[object]:
    """Every figure and turn of a random engine, after each of its iterations."""
    rng, time = Random(seed), EngineTime(isolation=isolation)
    clients = [f"ns/t{rng.randrange(3)}/c{number}" for number in range(rng.randint(2, 15))]
    batch: list[Request] = []
    answers: list[object] = []
    for number in range(60):
        if rng.random() < 0.5:
            one = request(rng.choice(clients), number, rng.choice([0.5, 1.0, 1.0, 3.0]))
            _begin((time,), one, rng.uniform(0.01, 0.5), decoded=bool(batch))
            batch.append(one)
        elif batch:
            steps = rng.randint(1, 40)
            time.decoded(_step_times(batch, steps))
            for one in batch:
                one.output_tokens += steps
            if rng.random() < 0.5:
                _end((time,), batch.pop(rng.randrange(len(batch))))
        turns = [(time.must_wait(one), time.should_wait(one)) for one in batch]
        answers += [figures(time), turns]
    return answers


def _decode(once: EngineTime, single: EngineTime, batch: list[Request], steps: int) -> None:
    times = _step_times(batch, steps)
    once.decoded(times)
    for seconds in times:
        single.decoded([seconds])
    for one in batch:
        one.output_tokens += steps


def _step_times(batch: list[Request], steps: int) -> list[float]:
    context = sum(one.input_tokens + one.output_tokens for one in batch)
    return [0.01 + 1e-5 * (context + len(batch) * (192 + n)) for n in range(steps)]


def _begin(times: tuple[EngineTime, ...], one: Request, seconds: float, *, decoded: bool) -> None:
    for time in times:
        time.open(one)
        time.starts(one)
        time.elapsed(seconds, prefilled={one: 100}, decoded=decoded)
    one.output_tokens = 1
    for time in times:
        time.decodes(one)


def _end(times: tuple[EngineTime, ...], one: Request) -> None:
    for time in times:
        time.stops(one)
        time.close(one)


class TwoPasses(EngineTime):
    """Without the short cut of `PassTurns`: the pass in which clients yield comes to its end, and another follows."""

    def all_yield(self) -> bool:
        return False


SLOTS = 4


class Server:
    """DLPM over an engine with few slots, whose time is divided."""

    def __init__(self, time: EngineTime) -> None:
        self.policy, self.time = Dlpm(rules=DeficitRules(quantum=200.0)), time
        self.turns = PassTurns(time)
        self.running: list[Request] = []
        self.passes = 0

    def admit(self, now_s: float) -> list[Request]:
        """One or two passes."""
        self.turns.begin()
        admitted = self._one_pass(now_s)
        if len(self.running) < SLOTS and self.turns.must_repeat(admitted):
            admitted += self._one_pass(now_s)
        return admitted

    def _one_pass(self, now_s: float) -> list[Request]:
        self.passes += 1
        admitted = []
        admissions = self.policy.admissions(now_s)
        wanted = next(admissions, None)
        while wanted is not None and len(self.running) < SLOTS:
            answer = AdmissionResult.CLIENT_LATER
            if not self.turns.must_wait(wanted):
                answer = AdmissionResult.ADMITTED
                wanted.extend_tokens = wanted.input_tokens
                self.time.starts(wanted)
                self.running.append(wanted)
                admitted.append(wanted)
            try:
                wanted = admissions.send(answer)
            except StopIteration:
                break
        admissions.close()
        return admitted

    def compute(self, admitted: list[Request]) -> None:
        """A prefill, or a decode step: a token for each."""
        tokens = {one: one.input_tokens for one in admitted}
        context = sum(one.input_tokens for one in self.running)
        seconds = 1e-4 * sum(tokens.values()) if tokens else STEP_S + 5e-6 * context
        if self.running:
            self.time.elapsed(seconds, prefilled=tokens, decoded=not tokens)
        for one in admitted:
            self.time.decodes(one)
        for one in self.running:
            one.output_tokens += 1
            self.policy.progress(one, 1)

    def end(self, one: Request) -> None:
        """A request is complete."""
        self.running.remove(one)
        self.time.stops(one)
        self.time.close(one)
        self.policy.leave(one, 0.0)


def served(seed: int, time: EngineTime) -> tuple[list[str], int]:
    """The requests that enter, in order, and the number of passes."""
    rng, server, numbers = Random(seed), Server(time), count()
    clients = [f"ns/t{n % rng.choice([3, 6])}/c{n}" for n in range(6)]
    order: list[str] = []
    for step in range(60):
        for _ in range(rng.choice([0, 1, 2])):
            one = request(rng.choice(clients), next(numbers), 1.0)
            one.input_tokens = rng.choice([10, 100, 2000])
            server.policy.arrive(one, 0.1 * step)
            time.open(one)
        admitted = server.admit(0.1 * step)
        order += [one.id for one in admitted]
        server.compute(admitted)
        for one in [one for one in server.running if rng.random() < 0.2]:
            server.end(one)
    return order, server.passes


@given(seed=st.integers(0, 10**6), isolation=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_pass_in_which_all_would_yield_admits_what_the_next_one_would(
    seed: int, isolation: float
) -> None:
    order, passes = served(seed, EngineTime(isolation=isolation))
    literal, more = served(seed, TwoPasses(isolation=isolation))
    assert order == literal
    assert passes <= more


def test_a_pass_in_which_all_would_yield_saves_the_next_one() -> None:
    passes = [
        sum(served(seed, time(isolation=0.5))[1] for seed in range(10))
        for time in (EngineTime, TwoPasses)
    ]
    assert passes[0] < passes[1]
