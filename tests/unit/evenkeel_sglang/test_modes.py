"""Modes in which the policy would not decide are refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from evenkeel_contract.engineflags import BYPASSING_FLAGS, BYPASSING_VARIABLES
from evenkeel_sglang import hooks, modes
from evenkeel_sglang.seams import SeamError

OFF = {
    "dp_size": 1,
    "disaggregation_mode": "null",
    "dllm_algorithm": None,
    "enable_pdmux": False,
    "enable_priority_scheduling": False,
    "lora_drain_wait_threshold": 0.0,
}
ON = {
    "dp_size": 2,
    "disaggregation_mode": "prefill",
    "dllm_algorithm": "LowConfidence",
    "enable_pdmux": True,
    "enable_priority_scheduling": True,
    "lora_drain_wait_threshold": 2.0,
}


def arguments(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**OFF, "schedule_policy": "dlpm", **changes})


def test_an_engine_without_such_a_mode_starts() -> None:
    modes.check(arguments())
    modes.check(SimpleNamespace())  # a version that has none of them
    assert {mode.setting for mode in modes.REFUSED} == OFF.keys() == ON.keys()
    assert {mode.flag for mode in modes.REFUSED} <= set(BYPASSING_FLAGS)


@pytest.mark.parametrize("mode", modes.REFUSED, ids=lambda mode: mode.setting)
def test_a_mode_that_bypasses_the_policy_is_refused_by_its_flag(mode: modes.Mode) -> None:
    refused = arguments(**{mode.setting: ON[mode.setting]})
    with pytest.raises(SeamError, match=f"{mode.flag} is set; remove it"):
        hooks.read_flags(refused)
    refused.schedule_policy = "fcfs"  # SGLang's own policies may do as they like
    hooks.read_flags(refused)


@pytest.mark.parametrize("name", modes.REFUSED_VARIABLES)
@pytest.mark.parametrize(("value", "refused"), [("1", True), ("True", True), ("0", False)])
def test_a_variable_that_bypasses_the_policy_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, refused: bool
) -> None:
    assert modes.REFUSED_VARIABLES.keys() <= set(BYPASSING_VARIABLES)
    monkeypatch.setenv(name, value)
    if refused:
        with pytest.raises(SeamError, match=f"{name} is set; remove it"):
            hooks.read_flags(arguments())
    else:
        hooks.read_flags(arguments())
    hooks.read_flags(arguments(schedule_policy="fcfs"))


def test_the_scheduler_checks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs may start an engine without a command line."""
    scheduler = SimpleNamespace(
        schedule_policy="dlpm",
        server_args=arguments(lora_drain_wait_threshold=2.0),
        policy=SimpleNamespace(),
    )
    monkeypatch.setattr(hooks, "make_scheduling", lambda *_: None)
    monkeypatch.setattr(hooks, "_scheduling", None)
    with pytest.raises(SeamError, match="--lora-drain-wait-threshold is set; remove it"):
        hooks.init_policy(lambda _: None, scheduler)
