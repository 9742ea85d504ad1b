"""Settings of an engine survive the way through its environment; an error names its variable."""

from __future__ import annotations

import pytest
from evenkeel_contract.enginesettings import (
    EngineSettings,
    EngineSettingsError,
    schedule_policy_flag,
)
from evenkeel_contract.queueorder import RequestOrder


@pytest.mark.parametrize(
    "settings",
    [
        EngineSettings(),
        EngineSettings(
            client_quantum=12_345_678,
            input_token_weight=0.5,
            output_token_weight=3,
            kv_time=40,
            rejoin="Paper",
            order=RequestOrder.LONGEST_MATCH,
            warmup_s=0.5,
            isolation=0.75,
            reports_port=5559,
            reports_host="0.0.0.0",
            incarnation="one",
        ),
        EngineSettings(isolation=None),
    ],
)
def test_settings_survive_the_environment(settings: EngineSettings) -> None:
    assert EngineSettings.from_environment(settings.to_environment()) == settings


def test_absent_and_empty_variables_keep_the_defaults() -> None:
    for text in ("", "Auto"):
        assert (
            EngineSettings.from_environment({"EVENKEEL_CLIENT_QUANTUM": text}) == EngineSettings()
        )


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EVENKEEL_CLIENT_QUANTUM", "0"),
        ("EVENKEEL_CLIENT_QUANTUM", "many"),
        ("EVENKEEL_INPUT_TOKEN_WEIGHT", "-1"),
        ("EVENKEEL_OUTPUT_TOKEN_WEIGHT", "nan"),
        ("EVENKEEL_REJOIN", "Never"),
        ("EVENKEEL_ORDER", "Newest"),
        ("EVENKEEL_KV_TIME", "-1"),
        ("EVENKEEL_WARMUP_S", "-1"),
        ("EVENKEEL_WARMUP_S", "inf"),
        ("EVENKEEL_ISOLATION", "-0.5"),
        ("EVENKEEL_ISOLATION", "nan"),
        ("EVENKEEL_REPORTS_PORT", "70000"),
        ("EVENKEEL_REPORTS_PORT", "http"),
    ],
)
def test_a_fault_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(EngineSettingsError, match=variable):
        EngineSettings.from_environment({variable: value})


def test_policies_that_sglang_has_too_go_by_names_of_their_own() -> None:
    flags = [schedule_policy_flag(name) for name in ("DLPM", "VTC", "FCFS", "LPM", "HRRN")]
    assert flags == ["dlpm", "vtc", "evenkeel-fcfs", "evenkeel-lpm", "evenkeel-hrrn"]
