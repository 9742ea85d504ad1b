"""A policy in charge of an engine's queue, over an engine that is only a loop: walk, answer, forward, finish."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest
from evenkeel_contract.key import UNKNOWN
from evenkeel_contract.reportbook import Accounts
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import AdmissionResult
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.engine_time import EngineTime
from evenkeel_fairshare.replica.memory_shares import MemoryShares
from evenkeel_fairshare.replica.order import LONGEST_MATCH, Order
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_plugin.request import EngineRequest, is_probe
from evenkeel_plugin.scheduling import Scheduling

from tests.support.replica import SHORTEST_FIRST

QUANTUM = 100.0


@dataclass
class Sampling:
    max_new_tokens: int = 4
    ignore_eos: bool = False


@dataclass(eq=False)
class Req:
    """The attributes of SGLang's `Req` that the plug-in reads."""

    rid: str
    routing_key: str | None
    origin_input_ids: list[int]
    output_ids: list[int] = field(default_factory=list)
    extra_key: str | None = None
    num_matched_prefix_tokens: int = 0
    prefix_len: int = 0
    sampling_params: Sampling = field(default_factory=Sampling)
    is_over: bool = False
    why: str = "stop"

    def finished(self) -> bool:
        return self.is_over

    @property
    def finished_reason(self) -> Req | None:
        return self if self.is_over else None

    def to_json(self) -> dict[str, str]:
        return {"type": self.why}


class Loop:
    """What SGLang's scheduler does with its queue, in little: room for `slots` requests, no cache but `cached`."""

    def __init__(
        self,
        policy: str = "DLPM",
        *,
        slots: int = 2,
        time: EngineTime | None = None,
        memory: MemoryShares | None = None,
        order: Order = LONGEST_MATCH,
    ) -> None:
        self.slots = slots
        self.cached: dict[str, int] = {}
        self.matched: list[str] = []
        self.refused: list[str] = []
        self.waiting_queue: list[EngineRequest] = []
        self.running: list[Req] = []
        cost = LinearCost()
        config = ReplicaPolicyConfig(cost=cost, deficits=DeficitRules(quantum=QUANTUM), order=order)
        self.now_s = 0.0
        self.scheduling = Scheduling(
            make_policy(policy, config),
            Accounts(cost),
            match=self.match,
            time=time,
            memory=memory,
            refused=self.refused.append,
            clock=lambda: self.now_s,
        )

    def match(self, request: EngineRequest) -> int:
        self.matched.append(request.rid)
        return self.cached.get(request.rid, 0)

    def send(self, *requests: Req) -> None:
        self.waiting_queue.extend(requests)

    def step(
        self, *, skip: Iterable[str] = (), postponed: Iterable[str] = (), lacking: int = 0
    ) -> list[str]:
        """One prefill pass; returns whom it admitted, in order. `postponed` do not fit beside a prompt in chunks, `lacking` are the tokens
        of memory that the first lacks that does not fit."""
        self.waiting_queue = self.scheduling.begin_pass(
            self.waiting_queue, self.running, self.scheduling.chunk_waits
        )
        admitted: list[Req] = []
        for request in self.waiting_queue:
            assert isinstance(request, Req)
            if request.rid in skip:
                continue  # as for an adapter that is not loaded
            if request.rid in postponed:
                self.scheduling.postponed(request, AdmissionResult.LATER)
                continue
            fits = len(self.running) + len(admitted) < self.slots
            request.prefix_len = self.cached.get(request.rid, 0)
            if fits:
                admitted.append(request)
            self.scheduling.tried(request, admitted=fits)
            if not fits:
                self.scheduling.lacks(request, lacking)
                break
        self.scheduling.end_pass()
        self.waiting_queue = [request for request in self.waiting_queue if request not in admitted]
        self.running += admitted
        return [request.rid for request in admitted]

    def forward(
        self, *, is_prefill: bool = False, finish: Iterable[str] = (), seconds: float = 0.0
    ) -> None:
        """One token for each running request; `finish` names those that end."""
        for request in self.running:
            request.output_ids.append(7)
            request.is_over = request.is_over or request.rid in finish
        self.scheduling.processed(self.running, is_prefill=is_prefill, seconds=seconds)
        self.running = [request for request in self.running if not request.is_over]


def req(rid: str, client: str = "a", *, tokens: int = 60, weight: int = 1, base: int = 0) -> Req:
    words = [base + index for index in range(tokens)]
    return Req(
        rid=rid, routing_key=f"ek1;ns/{client}/{client};w={weight},1", origin_input_ids=words
    )


def test_a_pass_charges_each_admission_before_it_proposes_the_next() -> None:
    loop = Loop(slots=4)
    # 60 tokens each against a quantum of 100: two of a, then a is in debt and b's turn comes.
    loop.send(*(req(f"a{i}", "a", base=1000 * i) for i in range(3)))
    loop.send(*(req(f"b{i}", "b", base=9000 + 1000 * i) for i in range(2)))
    assert loop.step() == ["a0", "a1", "b0", "b1"]


def test_dlpm_admits_in_the_order_that_it_was_given() -> None:
    loop = Loop(slots=4, order=SHORTEST_FIRST)
    loop.cached = {"cached": 40}
    sizes = {"long": 80, "short": 5, "middle": 30, "cached": 60}
    loop.send(*(req(rid, tokens=tokens, base=1000 * tokens) for rid, tokens in sizes.items()))
    assert loop.step() == ["short", "cached", "middle", "long"]


def test_hrrn_admits_the_highest_response_ratio_first() -> None:
    loop = Loop("HRRN", slots=1)
    loop.send(*(req(rid, tokens=n, base=1000 * n) for rid, n in {"first": 60, "long": 80}.items()))
    assert loop.step() == ["first"]
    loop.forward(is_prefill=True, finish=["first"])
    loop.send(req("new", tokens=5))
    assert loop.step() == ["long"]  # 60 tokens were computed since it came


def test_a_pause_retracts_a_request_that_was_to_give_memory_back() -> None:
    loop = Loop(slots=1, memory=MemoryShares(100))
    big, small = req("big", "a", tokens=80), req("small", "b", tokens=5, base=500)
    loop.send(big)
    loop.step()
    loop.forward(is_prefill=True)
    loop.send(small)
    for now_s in (1.0, 1.25, 1.5, 1.75):  # no room for so long that b has a claim
        loop.now_s = now_s
        loop.scheduling.wants_pass()
        assert loop.step(lacking=50) == []
    assert list(loop.scheduling.giving()) == [big]
    loop.running.clear()
    loop.waiting_queue.append(big)
    loop.scheduling.look(loop.waiting_queue, loop.running)
    assert not loop.scheduling.giving()
    loop.scheduling.gave([])


def test_all_other_code_sees_a_list() -> None:
    loop = Loop(slots=0)
    loop.send(req("a0"), req("a1", base=500))
    loop.step()
    assert [request.rid for request in loop.waiting_queue] == ["a0", "a1"]
    assert len(loop.waiting_queue) == 2


def test_a_pass_that_was_opened_but_not_walked_leaves_a_list() -> None:
    loop = Loop()
    loop.send(req("a0"))
    queue = loop.scheduling.begin_pass(loop.waiting_queue, loop.running)
    loop.scheduling.end_pass()
    assert [request.rid for request in queue] == ["a0"]
    assert loop.step() == ["a0"]


def test_time_between_tokens_and_the_quantum_are_reported() -> None:
    loop = Loop()
    loop.send(req("a0"))
    loop.step()
    for now_s, ends in ((5.0, []), (5.25, []), (6.0, ["a0"])):
        loop.now_s = now_s
        loop.forward(finish=ends)
    totals, _, quantum = loop.scheduling.snapshot()
    assert (totals["ns/a/a"].itl_tokens, totals["ns/a/a"].itl_s) == (2, 1.0)
    assert quantum == QUANTUM


def test_output_is_charged_once_per_token_and_totals_add_up() -> None:
    loop = Loop()
    loop.send(req("a0"), req("a1", base=500))
    loop.step()
    loop.forward(is_prefill=True)
    loop.forward(finish=["a0", "a1"])
    totals, states, _ = loop.scheduling.snapshot()
    served = totals["ns/a/a"]
    assert (served.extend_tokens, served.output_tokens, served.requests) == (120, 4, 2)
    assert (served.service, served.running) == (120 + 2 * 4, 0)
    # The identity: served = quanta given − what is left (DLPM, Theorem 4.1's proof).
    assert (served.service + states["ns/a/a"].deficit) % QUANTUM == 0


def test_only_what_the_cache_did_not_hold_is_charged() -> None:
    loop = Loop()
    loop.cached["a0"] = 48
    loop.send(req("a0"))
    loop.step()
    served = loop.scheduling.snapshot()[0]["ns/a/a"]
    assert (served.extend_tokens, served.cached_tokens) == (12, 48)


def test_a_request_that_vanished_from_the_queue_has_left() -> None:
    loop = Loop(slots=0)
    loop.send(req("a0"))
    loop.step()
    assert loop.scheduling.snapshot()[1]["ns/a/a"].waiting == 1
    loop.waiting_queue.clear()
    loop.step()
    assert "ns/a/a" not in loop.scheduling.snapshot()[1]
    assert not loop.scheduling.busy


def test_a_request_aborted_between_two_forward_passes_pays_for_what_it_got() -> None:
    loop = Loop()
    loop.send(req("a0"))
    loop.step()
    request = loop.running.pop()
    request.output_ids.append(7)
    request.is_over = True
    loop.step()
    served = loop.scheduling.snapshot()[0]["ns/a/a"]
    assert (served.output_tokens, served.running) == (1, 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_policy_has_the_engines_queue_whatever_changed_between_passes(seed: int) -> None:
    rng = Random(seed)
    loop = Loop(slots=4)
    for number in range(60):
        arrivals = [
            req(f"{number}-{i}", rng.choice("ab"), base=rng.randrange(9) * 500) for i in range(3)
        ]
        loop.send(*arrivals[: rng.randrange(4)])
        change = rng.randrange(8)
        if change == 0 and loop.waiting_queue:
            del loop.waiting_queue[rng.randrange(len(loop.waiting_queue))]
        elif change == 1 and loop.running:
            retracted = loop.running.pop(rng.randrange(len(loop.running)))
            loop.waiting_queue.insert(rng.choice([0, len(loop.waiting_queue)]), retracted)
        elif change == 2:
            rng.shuffle(loop.waiting_queue)
        elif change == 3:
            loop.send(Req(f"HEALTH_CHECK_{number}", None, [1]))
        loop.step()
        known = [one.id for one in loop.scheduling.policy.waiting()]
        held = [one.rid for one in loop.waiting_queue if not is_probe(one)]
        assert sorted(known) == sorted(held)
        running = loop.running
        loop.forward(is_prefill=True, finish=[one.rid for one in running if rng.random() < 0.3])


def test_a_retracted_request_pays_for_what_it_computes_again() -> None:
    loop = Loop(slots=1)
    loop.send(req("a0"))
    loop.step()
    loop.forward(is_prefill=True)
    loop.send(loop.running.pop())
    assert loop.step() == ["a0"]
    served = loop.scheduling.snapshot()[0]["ns/a/a"]
    assert served.extend_tokens == 60 + 61  # the second time with the token it had produced
    assert (served.output_tokens, served.running) == (1, 1)


def test_the_fleets_own_retry_does_not_pay_its_input_twice() -> None:
    loop = Loop()
    retried = req("a0")
    retried.routing_key = f"{retried.routing_key};f"
    loop.send(retried)
    loop.step()
    loop.forward(is_prefill=True)
    served = loop.scheduling.snapshot()[0]["ns/a/a"]
    assert (served.extend_tokens, served.service) == (60, 2)


def test_probes_go_first_and_belong_to_no_client() -> None:
    loop = Loop(slots=1)
    loop.send(req("a0"), Req("HEALTH_CHECK_1", None, [1]))
    assert loop.step() == ["HEALTH_CHECK_1"]
    loop.forward(finish=["HEALTH_CHECK_1"])
    assert (loop.refused, loop.scheduling.snapshot()[0]) == ([], {})


def test_a_request_without_a_readable_key_is_the_unknown_clients() -> None:
    loop = Loop()
    loop.send(Req("x", None, [1, 2]), Req("y", "ek1;nonsense", [3, 4]))
    loop.step()
    assert loop.refused == ["missing", "malformed"]
    assert loop.scheduling.snapshot()[0][UNKNOWN.identity].requests == 2


def test_the_first_seed_of_a_client_counts() -> None:
    loop = Loop(slots=0)
    for rid, seed in (("a0", -70), ("a1", -9000)):
        seeded = req(rid)
        seeded.routing_key = f"{seeded.routing_key};s={seed}"
        loop.send(seeded)
    loop.step()
    state = loop.scheduling.snapshot()[1]["ns/a/a"]
    assert (state.seed, state.deficit) == (-70, 30)  # one quantum of 100 on top


def test_a_request_passed_over_by_the_engine_stays_and_others_enter() -> None:
    loop = Loop()
    loop.send(req("a0"), req("a1", base=500))
    assert loop.step(skip=["a0"]) == ["a1"]
    assert loop.step() == ["a0"]


def test_requests_that_share_what_is_being_computed_wait_for_it() -> None:
    loop = Loop(slots=3)
    loop.send(req("a0"), req("b0", "b"), req("c0", "c", base=500))
    assert loop.step() == ["a0", "c0"]  # b0 lacks the very tokens that a0 computes
    loop.cached["b0"] = 48
    loop.forward(is_prefill=True)
    assert loop.step() == ["b0"]
    assert loop.scheduling.snapshot()[0]["ns/b/b"].cached_tokens == 48


def test_a_request_waits_for_whole_blocks_that_it_lacks_and_not_for_a_rest() -> None:
    loop = Loop(slots=3)
    loop.cached = {"a0": 32, "b0": 24}
    loop.send(req("a0", tokens=48), req("b0", "b", tokens=64))
    assert loop.step() == ["a0", "b0"], "a0 computes one of the two blocks that b0 lacks"


def test_fcfs_matches_no_request() -> None:
    loop = Loop("FCFS")
    loop.send(req("a0"), req("a1"))
    assert loop.step() == ["a0", "a1"]
    assert loop.matched == []


def test_a_client_is_expected_to_produce_what_its_last_request_produced() -> None:
    loop = Loop()
    last, next_ = req("a0"), req("a1", base=500)
    next_.sampling_params = Sampling(4096)
    loop.send(last)
    loop.step()
    for ends in ([], [], ["a0"]):
        loop.forward(finish=ends)
    loop.send(next_)
    loop.step()
    loop.scheduling.reservations.lower([next_])
    assert next_.sampling_params.max_new_tokens == 3


def test_a_request_aborted_while_running_is_reported_with_its_output() -> None:
    """R11: while it runs, between two passes, and while it waits after a retraction; not what never began."""
    loop = Loop(slots=3)
    running, between, retracted, never = (req(f"a{i}", "a", base=1000 * i) for i in range(4))
    loop.send(running, between, retracted, never)
    loop.step()
    loop.forward(is_prefill=True)
    loop.forward()
    running.why = between.why = "abort"
    loop.forward(finish=["a0"])
    between.is_over = True
    loop.running.remove(between)
    loop.running.remove(retracted)
    loop.waiting_queue.insert(0, retracted)
    loop.slots = 0
    loop.step()
    loop.waiting_queue = []
    loop.step()
    totals, *_ = loop.scheduling.snapshot()
    assert totals["ns/a/a"].aborted == 3
    assert totals["ns/a/a"].aborted_tokens == 3 + 3 + 3
    assert totals["ns/a/a"].output_tokens == 9


def test_output_that_was_paid_elsewhere_lowers_no_deficit() -> None:
    """R11: input and two tokens are paid."""
    loop = Loop()
    one = req("a0", "a")
    one.routing_key = f"{one.routing_key};f=2"
    loop.send(one)
    loop.step()
    deficits = []
    for tokens in range(4):
        loop.forward(is_prefill=not tokens)
        deficits.append(loop.scheduling.snapshot()[1]["ns/a/a"].deficit)
    assert [later - deficits[0] for later in deficits] == [0, 0, -2, -4]
    assert loop.scheduling.snapshot()[0]["ns/a/a"].service == 4


def test_a_request_that_asks_for_no_output_pays_for_none() -> None:
    """SGLang computes the prompt of `n` answers in such a request first, and makes a token that no usage has."""
    loop = Loop()
    one = req("a0", "a")
    one.sampling_params = Sampling(0)
    loop.send(one)
    loop.step()
    loop.forward(is_prefill=True, finish=["a0"])
    served = loop.scheduling.snapshot()[0]["ns/a/a"]
    assert (served.extend_tokens, served.output_tokens, served.service) == (60, 1, 60)


def test_what_is_aborted_while_no_pass_is_due_waits_no_longer_in_reports() -> None:
    """SGLang opens no pass over an empty queue."""
    loop = Loop(slots=1)
    loop.send(*(req(f"a{i}", "a", base=1000 * i) for i in range(4)))
    loop.step()
    assert loop.scheduling.snapshot()[1]["ns/a/a"].waiting == 3
    loop.scheduling.look(loop.waiting_queue, loop.running)
    assert loop.scheduling.snapshot()[1]["ns/a/a"].waiting == 3
    loop.scheduling.look([], loop.running)
    assert loop.scheduling.snapshot()[1]["ns/a/a"].waiting == 0


# Engine time (R13).


def beside_a_victim(prompt_s: float) -> Loop:
    """The victim decodes, and the rival has computed a prompt of `prompt_s` seconds that ended with its first token."""
    loop = Loop(slots=4, time=EngineTime())
    loop.send(req("v0", "v"))
    assert loop.step() == ["v0"]
    loop.forward(is_prefill=True, seconds=0.01)
    loop.send(req("r0", "r", base=5000))
    assert loop.step() == ["r0"]
    loop.scheduling.processed([loop.running[1]], is_prefill=True, seconds=prompt_s)
    loop.running[1].output_ids.append(7)
    loop.running[1].is_over = True
    loop.scheduling.processed([loop.running.pop()], is_prefill=True)
    return loop


def test_a_prompt_waits_for_as_much_decode_time_as_the_last_one_took() -> None:
    loop = beside_a_victim(prompt_s=0.5)
    loop.send(req("r1", "r", base=7000), req("n0", "n", base=9000))
    assert loop.step() == ["n0"], "a client that used nothing yet goes on"
    loop.forward(seconds=0.3)
    assert loop.step() == []
    loop.forward(seconds=0.5)
    assert loop.step() == ["r1"]


def test_without_engine_time_prompts_never_wait() -> None:
    loop = Loop(slots=4)
    loop.send(req("v0", "v"))
    loop.step()
    loop.forward(is_prefill=True, seconds=0.01)
    for number in range(3):
        loop.send(req(f"r{number}", "r", base=5000 * number + 5000))
        assert loop.step() == [f"r{number}"]
        loop.forward(is_prefill=True, seconds=1.0, finish=[f"r{number}"])


def test_the_next_chunk_of_a_prompt_waits_and_a_retracted_request_restarts() -> None:
    loop = beside_a_victim(prompt_s=0.1)
    loop.forward(seconds=0.5)
    chunked = req("r1", "r", base=7000)
    loop.send(chunked)
    assert loop.step() == ["r1"]
    assert not loop.scheduling.must_wait(chunked)
    loop.scheduling.processed([chunked], is_prefill=True, seconds=0.5)
    assert loop.scheduling.must_wait(chunked)
    loop.running.remove(chunked)
    loop.send(chunked)
    assert loop.step() == []
    loop.forward(seconds=1.0)
    assert loop.step() == ["r1"]
    assert not loop.scheduling.must_wait(req("unknown"))


def test_a_client_with_a_lag_that_waits_is_admitted_before_others() -> None:
    loop = beside_a_victim(prompt_s=0.5)
    loop.forward(seconds=0.01, finish=["v0"])
    loop.send(req("r1", "r", base=7000), req("v1", "v", base=9000))
    assert loop.step() == ["v1"]
    loop.forward(is_prefill=True, finish=["v1"], seconds=0.01)
    assert loop.step() == ["r1"], "nothing else is there: no capacity is idle"


def beside_a_chunk() -> tuple[Loop, Req]:
    """The rival computes a prompt in chunks and asks for more; the victim has a lag, and no request."""
    loop = beside_a_victim(prompt_s=0.1)
    loop.forward(seconds=0.1)
    chunked = req("r1", "r", tokens=2000, base=7000)
    loop.send(chunked)
    assert loop.step() == ["r1"]
    loop.scheduling.processed([loop.running[0]], is_prefill=False, seconds=0.01)
    loop.scheduling.processed([chunked], is_prefill=True, seconds=0.5)
    loop.running[0].is_over = True
    loop.scheduling.processed([loop.running.pop(0)], is_prefill=False)
    loop.send(req("v1", "v", base=11_000))
    return loop, chunked


def test_a_client_with_a_lag_that_waits_goes_before_the_next_chunk_of_others() -> None:
    loop, chunked = beside_a_chunk()
    assert loop.scheduling.should_wait(chunked, loop.waiting_queue, loop.running)
    assert not loop.scheduling.must_wait(chunked), "no other request runs"
    loop.scheduling.chunk_waits = chunked
    assert loop.step() == ["v1"]


def test_where_it_does_not_fit_no_other_request_takes_the_place_of_the_chunk() -> None:
    loop, chunked = beside_a_chunk()
    loop.send(req("r2", "r", base=9000))
    loop.scheduling.chunk_waits = chunked
    assert loop.step(postponed=["v1"]) == []
    assert loop.step() == ["v1"], "it gets a refill, although the rival has credit"
