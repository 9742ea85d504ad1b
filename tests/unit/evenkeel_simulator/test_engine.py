from collections.abc import Sequence

import msgspec
import pytest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import Arrival, Request
from evenkeel_fairshare.replica.registry import make_policy
from evenkeel_laboratory.policies.vtc_artifact import ArtifactAdmission, artifact_config
from evenkeel_simulator.engine.batch import Batch
from evenkeel_simulator.engine.config import AdmissionRule, EngineConfig
from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.profiles import PROFILES, ProfileError, decode_profile
from evenkeel_simulator.engine.request import RequestError, State

from tests.unit.evenkeel_simulator.engine_support import PROFILE, LongestMatch, Queue, make_request


def make_engine(policy: Queue | None = None, **config: object) -> Engine:
    chosen = Queue() if policy is None else policy  # an empty queue is false
    return Engine(EngineConfig(**config), chosen, PROFILE)  # type: ignore[arg-type]


def run_to_end(engine: Engine, now_s: float = 0.0) -> float:
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
    return now_s


def test_a_request_alone_takes_the_profile_s_prefill_and_decode_times() -> None:
    engine = make_engine()
    request = make_request("r", tail=100, output=3)
    engine.submit(request, 0.0)
    prefill = engine.step(0.0)
    assert prefill is not None
    assert prefill.end_s == pytest.approx((8 + 0.25 * 100) / 1e3)
    assert (prefill.prefill_tokens, prefill.produced, prefill.tokens_each) == (100, [request], 1)
    end_s = run_to_end(engine, prefill.end_s)
    decode_ms = (16 + 0.5 + 0.125 * 101) + (16 + 0.5 + 0.125 * 102)
    assert end_s == pytest.approx(prefill.end_s + decode_ms / 1e3)
    assert request.state is State.FINISHED
    assert (request.first_token_s, request.finished_s) == (prefill.end_s, end_s)


def test_a_run_of_decode_steps_is_cut_by_a_submission_at_the_step_under_way() -> None:
    engine = make_engine()
    running = make_request("a", tail=100, output=50)
    engine.submit(running, 0.0)
    step = engine.step(0.0)
    assert step is not None
    far_s = engine.start(step.end_s)
    assert far_s is not None
    assert far_s > 1.0
    engine.submit(make_request("b", tail=10, output=2), 0.2)
    cut_s = engine.busy_until_s
    assert cut_s is not None
    assert 0.2 < cut_s < 0.2 + 0.05
    produced = engine.finish().tokens_each
    assert running.output_tokens == 1 + produced
    admitted = engine.step(cut_s)
    assert admitted is not None
    assert [r.id for r in admitted.admitted] == ["b"]


def test_when_memory_did_not_suffice_a_submission_does_not_cut_the_run() -> None:
    engine = make_engine(admission=AdmissionRule.RESERVATION)
    engine.submit(make_request("a", tail=500, output=400), 0.0)
    engine.submit(make_request("b", tail=500, output=400), 0.0)
    now_s = engine.step(0.0).end_s  # type: ignore[union-attr]
    end_s = engine.start(now_s)
    engine.submit(make_request("c", tail=5, output=5), now_s + 0.1)
    assert engine.busy_until_s == end_s
    assert [r.id for r in engine.finish().finished] == ["a"]


def test_a_request_that_did_not_fit_beside_a_newcomer_is_tried_again() -> None:
    """A newcomer counts with all that it may produce, and one in the batch with a part of it."""
    engine = make_engine(kv_tokens=1000)
    engine.submit(make_request("a", tail=100, output=600), 0.0)
    engine.submit(make_request("b", tail=100, output=300), 0.0)
    now_s, admitted = 0.0, []
    for _ in range(2):
        step = engine.step(now_s)
        assert step is not None
        now_s = step.end_s
        admitted.append([request.id for request in step.admitted])
    assert admitted == [["a"], ["b"]]


def test_a_cached_prefix_is_not_computed_again_and_the_output_extends_it() -> None:
    engine = make_engine()
    engine.submit(make_request("a", prompt=(("p", 100),), output=5, output_key="a-out"), 0.0)
    now_s = run_to_end(engine)
    child = make_request("b", prompt=(("p", 100), ("a-out", 5), ("q", 7)), output=2)
    engine.submit(child, now_s)
    run_to_end(engine, now_s)
    assert (child.cached_tokens, child.extend_tokens) == (105, 7)
    assert engine.memory.cache.tokens == 112
    totals = engine.accounts.clients["ns/t/a"]
    assert (totals.extend_tokens, totals.cached_tokens, totals.output_tokens) == (107, 105, 7)
    assert totals.service == 107 + 2 * 7


def test_the_output_of_a_request_that_fills_the_memory_is_cached_completely() -> None:
    """A next turn finds it. The last token was never computed as input, and needs the last free place."""
    engine = make_engine(kv_tokens=100, admission=AdmissionRule.RESERVATION)
    engine.submit(make_request("a", prompt=(("p", 96),), output=4, output_key="a-out"), 0.0)
    run_to_end(engine)
    assert engine.memory.cache.tokens == 100


def test_the_time_between_tokens_includes_prefills_of_other_requests() -> None:
    engine = make_engine()
    first = make_request("a", tail=50, output=40)
    engine.submit(first, 0.0)
    now_s = engine.step(0.0).end_s  # type: ignore[union-attr]
    for _ in range(3):
        now_s = engine.step(now_s).end_s  # type: ignore[union-attr]
    engine.submit(make_request("b", client="ns/t/b", tail=300, output=1), now_s)
    assert first.first_token_s is not None
    totals = engine.accounts.clients["ns/t/a"]
    assert (totals.itl_tokens, totals.itl_s) == (3, pytest.approx(now_s - first.first_token_s))
    run_to_end(engine, now_s)
    totals = engine.accounts.clients["ns/t/a"]
    assert first.finished_s is not None
    between_s = first.finished_s - first.first_token_s
    assert (totals.itl_tokens, totals.itl_s) == (39, pytest.approx(between_s))
    assert engine.accounts.clients["ns/t/b"].itl_tokens == 0


def test_one_prompt_at_most_is_in_chunks_while_others_decode() -> None:
    """As in SGLang. More of them would hold memory that the prefix cache needs."""
    config = EngineConfig(prefill_tokens=100, kv_tokens=10_000)
    engine = Engine(config, make_policy("DLPM"), PROFILE)
    engine.submit(make_request("a", tail=10, output=400, client="ns/a/a"), 0.0)
    engine.step(0.0)
    for number in range(5):
        for client in ("b", "c", "d", "e"):
            name = f"{client}{number}"
            engine.submit(make_request(name, tail=250, output=1, client=f"ns/{client}/x"), 0.0)
    now_s, begun = 0.0, []
    while engine.has_work:
        step = engine.step(now_s)
        assert step is not None
        now_s = step.end_s
        begun.append(sum(request.state is State.PREFILLING for request in engine.running()))
    assert max(begun) == 1


def test_the_same_prompt_again_computes_one_token_and_holds_nothing_twice() -> None:
    engine = make_engine()
    for name in ("a", "b"):
        engine.submit(make_request(name, prompt=(("p", 100),), output=5), 0.0)
        run_to_end(engine)
    again = engine.accounts.clients["ns/t/a"]
    assert again.extend_tokens == 101
    loads = engine.loads()
    assert (loads.used_tokens, loads.evictable_tokens, loads.free_tokens) == (0, 100, 900)


def test_equal_prompts_of_one_pass_are_computed_twice_and_shared_afterwards() -> None:
    engine = make_engine()
    for name in ("a", "b"):
        engine.submit(make_request(name, prompt=(("p", 100),), output=50), 0.0)
    step = engine.step(0.0)
    assert step is not None
    assert step.prefill_tokens == 200
    assert engine.loads().used_tokens == 100  # their first tokens are yet to be fed back


def test_forks_that_lack_one_prefix_wait_until_one_of_them_has_computed_it() -> None:
    engine = make_engine(LongestMatch())
    forks = [make_request(name, prompt=(("shared", 100), (name, 10)), output=50) for name in "abc"]
    for fork in forks:
        engine.submit(fork, 0.0)
    engine.submit(make_request("other", tail=7, output=50), 0.0)
    first = engine.step(0.0)
    assert first is not None
    assert [r.id for r in first.admitted] == ["a", "other"]
    second = engine.step(first.end_s)
    assert second is not None
    assert [r.id for r in second.admitted] == ["b", "c"]
    assert second.prefill_tokens == 20


def test_forks_of_a_chunked_prompt_wait_for_its_last_shared_chunk() -> None:
    engine = make_engine(LongestMatch(), prefill_tokens=60)
    prompt = (("s0", 50), ("s1", 50), ("s2", 50))
    first, second = (make_request(name, prompt=prompt, tail=5, output=50) for name in "ab")
    engine.submit(first, 0.0)
    engine.submit(second, 0.0)
    now_s, sizes = 0.0, []
    while second.state is not State.RUNNING:
        step = engine.step(now_s)
        assert step is not None
        now_s = step.end_s
        sizes.append(step.prefill_tokens)
    assert sum(sizes) == 155 + 5
    assert second.extend_tokens == 5


def test_the_maker_s_abort_sets_the_next_one_to_work() -> None:
    engine = make_engine(LongestMatch())
    for name in "ab":
        engine.submit(make_request(name, prompt=(("shared", 100),), tail=5), 0.0)
    end_s = engine.start(0.0)
    assert end_s is not None
    engine.abort("a", 0.001)
    engine.finish()
    step = engine.step(end_s)
    assert step is not None
    assert [r.id for r in step.admitted] == ["b"]
    assert step.prefill_tokens == 105


@pytest.mark.parametrize(("policy", "config"), [(Queue, {}), (LongestMatch, {"share_in_batch": 0})])
def test_engines_without_sharing_in_a_batch_compute_a_prefix_for_each_fork(
    policy: type[Queue], config: dict[str, bool]
) -> None:
    engine = make_engine(policy(), **config)
    for name in "ab":
        engine.submit(make_request(name, prompt=(("shared", 100), (name, 10))), 0.0)
    step = engine.step(0.0)
    assert step is not None
    assert step.prefill_tokens == 220


def test_long_prompts_are_chunked_and_decode_waits_for_them() -> None:
    engine = make_engine(prefill_tokens=64)
    engine.submit(make_request("a", tail=10, output=50), 0.0)
    now_s = engine.step(0.0).end_s  # type: ignore[union-attr]
    chunked = make_request("b", tail=150, output=2)
    engine.submit(chunked, now_s)
    sizes = []
    while chunked.state is not State.FINISHED:
        step = engine.step(now_s)
        assert step is not None
        now_s = step.end_s
        sizes.append(step.prefill_tokens)
    assert sizes == [64, 64, 22, 0]


def test_mixed_iterations_decode_while_they_prefill() -> None:
    engine = make_engine(prefill_tokens=64, mixed=True)
    first = make_request("a", tail=10, output=50)
    engine.submit(first, 0.0)
    now_s = engine.step(0.0).end_s  # type: ignore[union-attr]
    engine.submit(make_request("b", tail=100, output=2), now_s)
    step = engine.step(now_s)
    assert step is not None
    assert step.produced == [first]
    assert step.prefill_tokens == 64
    assert step.end_s - now_s == pytest.approx((16 + 0.25 * 64 + 0.5 + 0.125 * 11) / 1e3)


def test_a_request_that_could_never_run_is_refused_by_name() -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match="the KV pool holds 1000"):
        engine.submit(make_request("r", tail=999, output=2), 0.0)
    with pytest.raises(RequestError, match="input_tokens is 0"):
        engine.submit(make_request("r", output=2), 0.0)
    with pytest.raises(RequestError, match="target_output_tokens is 3"):
        engine.submit(make_request("r", tail=1, output=3, max_output=2), 0.0)
    engine.submit(make_request("r", tail=1), 0.0)
    with pytest.raises(RequestError, match="is taken"):
        engine.submit(make_request("r", tail=1), 0.0)


def test_the_artifact_refuses_what_no_mini_batch_takes() -> None:
    """It holds 3072 tokens, of which two of each prompt are the tokenizer's."""
    engine = Engine(artifact_config(), Queue(), PROFILES["a10g-llama2-7b"])
    with pytest.raises(RequestError, match="no empty batch"):
        engine.submit(make_request("r", tail=3071, output=2), 0.0)
    for number in range(12):
        engine.submit(make_request(f"r{number}", tail=256, output=256), 0.0)
    first = engine.step(0.0)
    assert first is not None
    assert len(first.admitted) == 11


def test_the_artifact_needs_no_memory_for_the_last_output_token() -> None:
    running, newcomer = make_request("r", tail=100, output=2), make_request("n", tail=10, output=1)
    running.output_tokens = 1
    for spare, fits in ((1, True), (0, False)):
        held = (100 + 1 + 2) + (10 + 1 + 2)  # with two tokens of the tokenizer's each
        rule = ArtifactAdmission(held + ArtifactAdmission.ADAPTER_TOKENS + spare)
        rule.begin([running], 0)
        assert (rule.missing(newcomer, 10, 0) == 0) is fits


def test_the_first_prefill_of_a_new_engine_may_take_longer() -> None:
    profile = msgspec.structs.replace(PROFILE, first_prefill_ms=1000)
    engine, now_s = Engine(EngineConfig(), Queue(), profile), 0.0
    for want_s in (1.033, 0.033):
        engine.submit(make_request("r", tail=100, output=1), now_s)
        step = engine.step(now_s)
        assert step is not None
        assert step.end_s - now_s == pytest.approx(want_s)
        now_s = step.end_s


def test_the_request_with_least_output_is_retracted_when_memory_is_short() -> None:
    policy = Queue()
    engine = make_engine(policy)
    late, early = (
        make_request("late", tail=90, output=390, max_output=400),
        make_request("early", tail=100, output=590, max_output=600),
    )
    engine.submit(early, 0.0)
    now_s = engine.step(0.0).end_s  # type: ignore[union-attr]
    for _ in range(100):
        now_s = engine.step(now_s).end_s  # type: ignore[union-attr]
    engine.submit(late, now_s)
    retracted: list[str] = []
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
        retracted += [r.id for r in step.retracted]
    assert set(retracted) == {"late"}
    assert late.retractions == len(retracted) >= 1
    assert late.state is early.state is State.FINISHED
    assert policy.produced == {"early": 590, "late": 390}
    assert late.computed_tokens > 90
    assert engine.loads().used_tokens == 0


def test_of_requests_with_equal_lengths_the_last_to_begin_is_retracted_first() -> None:
    batch = Batch()
    for name in ("first", "second", "third"):
        batch.add(make_request(name, tail=20), 0.0)
    order = [request.id for request in batch.by_cost_of_retraction(lambda _: False)]
    assert order == ["third", "second", "first"]


def test_an_abort_ends_a_request_wherever_it_is_and_leaves_nothing_locked() -> None:
    engine = make_engine(prefill_tokens=64)
    requests = [
        make_request(name, prompt=((name, 30),), tail=100)
        for name in ("running", "prefilling", "waiting")
    ]
    for request in requests:
        engine.submit(request, 0.0)
    now_s = 0.0
    while requests[0].state is not State.RUNNING:
        now_s = engine.step(now_s).end_s  # type: ignore[union-attr]
    engine.start(now_s)
    states = []
    for request in requests:
        states.append(request.state)
        assert engine.abort(request.id, now_s + 0.001) is request
        assert engine.abort(request.id, now_s + 0.001) is None
    assert states == [State.RUNNING, State.PREFILLING, State.WAITING]
    engine.finish()
    assert not engine.has_work
    assert engine.step(1.0) is None
    assert engine.loads().used_tokens == 0


def test_waiting_prompts_are_matched_before_a_pass_though_the_cache_changed() -> None:
    engine = make_engine(LongestMatch(), max_running=1)
    engine.submit(make_request("a", prompt=(("p", 100),)), 0.0)
    cold = make_request("cold", prompt=(("c", 100),))
    warm = make_request("warm", prompt=(("p", 100), ("q", 10)))
    engine.submit(cold, 0.0)
    engine.submit(warm, 0.0)
    run_to_end(engine)
    assert warm.admitted_s is not None
    assert cold.admitted_s is not None
    assert warm.admitted_s < cold.admitted_s


def test_the_cache_is_cleared_only_when_no_request_holds_a_part_of_it() -> None:
    engine = make_engine()
    engine.submit(make_request("a", prompt=(("p", 100),)), 0.0)
    engine.step(0.0)
    assert not engine.memory.cache.clear()
    run_to_end(engine)
    assert engine.memory.cache.clear()
    assert engine.loads().free_tokens == 1000


def test_a_policy_may_reject_at_arrival() -> None:
    class Never(Queue):
        def arrive(self, request: object, now_s: float) -> Arrival:
            return Arrival.REJECTED

    engine = make_engine(Never())
    request = make_request("a", tail=1)
    assert engine.submit(request, 3.0) is Arrival.REJECTED
    assert request.state is State.REJECTED
    assert not engine.has_work


def test_a_profile_of_ones_own_is_read_from_json_and_faults_name_the_field() -> None:
    text = '{"prefill_ms":1,"prefill_token_ms":1,"decode_ms":1,"decode_request_ms":0,%s}'
    good = decode_profile(text % '"decode_kv_token_ms":0,"kv_tokens":5')
    assert good.kv_tokens == 5
    for fault, name in (
        ('"decode_kv_token_ms":0', "kv_tokens"),
        ('"decode_kv_token_ms":-1,"kv_tokens":5', "decode_kv_token_ms"),
        ('"decode_kv_token_ms":0,"kv_tokens":0', "kv_tokens"),
        ('"decode_kv_token_ms":0,"kv_tokens":5,"speed":1', "speed"),
    ):
        with pytest.raises(ProfileError, match=name):
            decode_profile(text % fault)


@pytest.mark.parametrize("field", ["kv_tokens", "max_running", "prefill_tokens"])
def test_a_configuration_of_nothing_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        EngineConfig(**{field: 0})


class Impatient(Queue):
    """Preempts request a once, after three tokens."""

    def preempt(self, running: Sequence[Request], now_s: float) -> Sequence[Request]:
        return [r for r in running if r.id == "a" and r.output_tokens == 3]


def test_a_preempted_request_is_computed_again_or_moved_to_the_host_and_back() -> None:
    ends_s = []
    for swap_token_ms in (None, 0.05):
        profile = msgspec.structs.replace(PROFILE, swap_token_ms=swap_token_ms)
        engine = Engine(EngineConfig(prefix_cache=False), Impatient(), profile)
        engine.submit(make_request("a", tail=100, output=6), 0.0)
        ends_s.append(run_to_end(engine))
    assert ends_s[0] - ends_s[1] == pytest.approx((100 + 3) * (0.25 - 0.05) / 1e3)


def test_a_policy_may_preempt_and_the_preempted_are_computed_again() -> None:
    engine = make_engine(Impatient(), max_running=1)
    engine.submit(make_request("a", prompt=(("p", 100),), output=6), 0.0)
    now_s, preempted = 0.0, []
    while (step := engine.step(now_s)) is not None:
        preempted += [request.id for request in step.retracted]
        now_s = step.end_s
    assert preempted == ["a"]
    # The prompt stayed in the cache; three output tokens were computed again.
    assert engine.accounts.clients["ns/t/a"].extend_tokens == 100 + 3
    assert engine.accounts.clients["ns/t/a"].output_tokens == 6


def test_output_that_was_paid_elsewhere_is_not_charged_here() -> None:
    """R11: the first five of ten tokens, whether they come one by one or many at a time."""
    for far in (None, 99.0):
        policy = Queue()
        engine = Engine(EngineConfig(kv_tokens=1000), policy, PROFILE, cost=LinearCost())
        retry, plain = (
            make_request("retry", tail=20, output=10),
            make_request("plain", tail=20, output=10),
        )
        retry.charge_input, retry.paid_output_tokens = False, 5
        for request in (retry, plain):
            engine.submit(request, 0.0)
        now_s = 0.0
        while (step := engine.step(now_s, far)) is not None:
            now_s = step.end_s
        assert policy.produced == {"retry": 5, "plain": 10}
        totals = engine.accounts.clients["ns/t/a"]
        assert (totals.output_tokens, totals.service) == (20, 2 * 5 + 20 + 2 * 10)
