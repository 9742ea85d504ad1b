import pytest
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_laboratory.experiments.fleet import Fleet

from bench.fleet_ablation import QUESTIONS, WHAT_IF, _config


def charged(policy_name: str) -> float:
    """What a policy takes for an admission of 100 tokens of which 90 are cached."""
    policy = WHAT_IF[policy_name](DeficitRules(quantum=1000))
    request = Request("r", "ns/t/c", "ns/t", 0.0, input_tokens=100, max_output_tokens=10)
    policy.arrive(request, 0.0)
    before = policy.clients()["ns/t/c"].deficit
    admissions = policy.admissions(0.0)
    assert next(admissions) is request
    refilled = policy.clients()["ns/t/c"].deficit
    request.extend_tokens = 10
    with pytest.raises(StopIteration):
        admissions.send(AdmissionResult.ADMITTED)
    return max(before, refilled) - policy.clients()["ns/t/c"].deficit


def test_what_if_policies_charge_what_their_names_say() -> None:
    assert {name: charged(name) for name in WHAT_IF} == {
        "DLPM, printed order": 10,
        "DLPM, all input charged": 100,
        "DLPM, all input charged, order of arrival": 100,
        "VTC, extend charged": 10,
    }


def test_every_variant_of_every_question_is_a_fleet() -> None:
    for variants in QUESTIONS.values():
        assert len({name for name, _ in variants}) == len(variants)
        for _, variant in variants:
            Fleet(_config(variant, "a10g-llama3.2-3b", 2, None), lambda record: None)
