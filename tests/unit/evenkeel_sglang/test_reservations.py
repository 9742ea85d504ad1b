"""How much output a request counts with in SGLang's estimates (design R14)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from evenkeel_plugin.request import Reservations, restore
from evenkeel_sglang import hooks


@dataclass
class Sampling:
    max_new_tokens: int | None = 4096
    ignore_eos: bool = False


@dataclass(eq=False)
class Req:
    client: str | None = "liar"
    output_ids: list[int] = field(default_factory=list)
    sampling_params: Sampling = field(default_factory=Sampling)


def history(*lengths: int) -> Reservations:
    reservations = Reservations(lambda request: request.client)
    for length in lengths:
        reservations.ended("liar", length)
    return reservations


def expected(reservations: Reservations, request: Req) -> int | None:
    limits = reservations.lower([request])
    try:
        return request.sampling_params.max_new_tokens
    finally:
        restore(limits)


def test_memory_given_back_leaves_the_estimate_as_it_is(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling(history(128), given=True))
    assert hooks.reserve_all(lambda reqs: 0.9, [Req()]) == 0.25


def test_a_request_counts_with_the_longest_of_its_clients_last_five():
    assert expected(history(900, 100, 128, 5, 90, 7), Req()) == 128


def test_it_counts_with_no_more_than_it_may_produce():
    assert expected(history(128), Req(sampling_params=Sampling(100))) == 100


@pytest.mark.parametrize(
    ("request_", "want"),
    [
        (Req(client="new"), 4096),
        (Req(client=None), 4096),
        (Req(output_ids=[0] * 128), 4096),
        (Req(sampling_params=Sampling(4096, ignore_eos=True)), 4096),
        (Req(sampling_params=Sampling(None)), None),
    ],
    ids=["no history", "a probe", "beyond its history", "a known length", "no output at all"],
)
def test_it_counts_in_full(request_, want):
    assert expected(history(128), request_) == want


def test_a_history_of_aborts_without_output_bounds_nothing():
    assert expected(history(0, 0), Req()) == 4096


def test_the_limits_themselves_do_not_change():
    shared = Sampling()
    requests = [Req(sampling_params=shared), Req(sampling_params=shared), Req(client="new")]
    limits = history(128).lower(requests)
    assert [request.sampling_params.max_new_tokens for request in requests] == [128, 128, 4096]
    restore(limits)
    assert [request.sampling_params.max_new_tokens for request in requests] == [4096] * 3


@dataclass
class Scheduling:
    reservations: Reservations
    given: bool = False

    def giving(self) -> bool:
        return self.given

    def gave(self, remaining: list[Req]) -> None:
        assert len(remaining) == 1

    def reserved_ratio(self) -> float:
        return 0.25


def test_the_engine_estimates_by_expected_output_and_failures_undo_it(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling(history(128)))
    request = Req()

    def estimate(adder: object, req: Req) -> int | None:
        return req.sampling_params.max_new_tokens

    def fails(reqs: list[Req]) -> float:
        raise RuntimeError

    assert hooks.reserve_one(estimate, None, request) == 128
    with pytest.raises(RuntimeError):
        hooks.reserve_all(fails, [request])
    assert request.sampling_params.max_new_tokens == 4096


@dataclass
class Batch:
    reqs: list[Req]


@dataclass
class Adder:
    """Estimates what the running requests need when it is made, as SGLang's does."""

    seen: list[int | None] = field(default_factory=list)

    def estimate(self, page_size, tree_cache, allocator, running_batch, ratio) -> None:
        if running_batch is not None:
            self.seen = [one.sampling_params.max_new_tokens for one in running_batch.reqs]


def test_running_requests_count_with_what_is_expected_of_them(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling(history(128)))
    batch, adder = Batch([Req(), Req(client="new"), Req(output_ids=[0] * 200)]), Adder()
    hooks.reserve_running(Adder.estimate, adder, 1, None, None, batch, 0.5)
    assert adder.seen == [128, 4096, 4096]
    assert [one.sampling_params.max_new_tokens for one in batch.reqs] == [4096] * 3


def test_an_engine_without_a_running_batch_has_nothing_to_estimate(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", Scheduling(history(128)))
    adder = Adder()
    hooks.reserve_running(Adder.estimate, adder, 1, None, None, None, 0.5)
    assert adder.seen == []


def test_without_a_policy_of_evenkeel_requests_count_in_full(monkeypatch):
    monkeypatch.setattr(hooks, "_scheduling", None)
    want = hooks.reserve_all(lambda reqs: reqs[0].sampling_params.max_new_tokens, [Req()])
    assert want == 4096
