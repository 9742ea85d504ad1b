"""An SGLang that does not fit starts in its own order where routers can take over, and stops elsewhere."""

from __future__ import annotations

import sys

import pytest
from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_sglang import plugin, seams, stock

from tests.support.reporting import report_of

ARGUMENTS = ["launch_server", "--schedule-policy=dlpm", "--host", "127.0.0.1", "--port=1"]


@pytest.fixture
def misfit(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise seams.SeamError("calc_priority moved")

    monkeypatch.setattr(seams, "check", check)
    monkeypatch.setattr(sys, "argv", list(ARGUMENTS))


@pytest.mark.usefixtures("misfit")
@pytest.mark.parametrize("environment", [{}, {"EVENKEEL_ON_MISMATCH": "Refuse", "EVENKEEL_REPORTS_PORT": "0"}])  # fmt: skip
def test_without_a_router_or_by_its_setting_it_stops(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=r"calc_priority moved.*Refusing to start"):
        plugin.register()
    assert sys.argv == ARGUMENTS


@pytest.mark.usefixtures("misfit")
def test_an_engine_behind_a_router_starts_without_the_flag_and_logs_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EVENKEEL_REPORTS_PORT", "0")
    plugin.register()
    assert sys.argv == ["launch_server", "--host", "127.0.0.1", "--port=1"]
    assert "does not fit the plug-in: calc_priority moved" in caplog.text


def test_its_reports_say_why_the_policy_is_inactive_and_have_no_clients() -> None:
    server = stock.serve(
        "calc_priority moved", EngineSettings(reports_port=0, incarnation="i"), host="127.0.0.1"
    )
    report = report_of(server.port)
    assert (report.incarnation, report.inactive) == ("i", "calc_priority moved")
    assert (report.policy, report.clients) == ("", ())


@pytest.mark.parametrize(
    ("arguments", "value", "others"),
    [
        (["a", "--flag", "x", "b"], "x", ["a", "b"]),
        (["--flag=x", "--flags=y"], "x", ["--flags=y"]),
        (["a"], None, ["a"]),
        (["--flag"], None, []),
    ],
)
def test_both_forms_of_a_flag_are_taken_out(
    arguments: list[str], value: str | None, others: list[str]
) -> None:
    assert stock.split(arguments, "--flag") == (value, others)
