"""Durations, quantities and percentages."""

from __future__ import annotations

from fractions import Fraction

import pytest
from evenkeel_contract.queueorder import IsolationSetting, QuantumSetting
from evenkeel_contract.values import CountOrPercent, Duration, Quantity


@pytest.mark.parametrize(
    ("text", "want_s"),
    [("120s", 120), ("1500ms", 1.5), ("5m", 300), ("720h", 2_592_000), ("1h30m", 5400)],
)
def test_durations_are_seconds(text: str, want_s: float) -> None:
    duration = Duration.from_plain(text)
    assert duration.seconds == want_s
    assert duration.to_plain() == text


@pytest.mark.parametrize(
    "data",
    [
        120,
        "120",
        "",
        "s",
        "-5s",
        "0s",
        "5 s",
        "1d",
        "٣s",
        None,
        True,
        "9" * 99 + "h",
        "101y",
        "0.000000001ms",
    ],
)
def test_what_is_no_duration_is_refused_with_an_example(data: object) -> None:
    with pytest.raises(ValueError, match=r"must be (a duration such as 120s|above 0)"):
        Duration.from_plain(data)


@pytest.mark.parametrize(
    ("data", "want"),
    [
        ("16Mi", 16 * 1024**2),
        ("100Gi", 100 * 1024**3),
        ("500m", Fraction(1, 2)),
        ("1.5k", 1500),
        ("3", 3),
        (3, 3),
        ("2e3", 2000),
        ("1E", 10**18),
    ],
)
def test_quantities_are_exact(data: object, want: Fraction) -> None:
    quantity = Quantity.from_plain(data)
    assert quantity.value == want
    assert quantity.to_plain() == data


def test_a_fractional_quantity_is_rounded_up_where_a_whole_is_needed() -> None:
    assert Quantity.from_plain("1500m").whole == 2


@pytest.mark.parametrize(
    "data", ["16MB", "", "Mi", "-1", 0, -1, 2**70, 1.5, True, None, "99E", "1e99", "0"]
)
def test_what_is_no_quantity_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"must be (a quantity such as 16Mi|above 0)"):
        Quantity.from_plain(data)


def test_a_percentage_is_a_share_and_a_count_is_itself() -> None:
    assert CountOrPercent.from_plain("50%").of(16) == 8
    assert CountOrPercent.from_plain(3).of(16) == 3
    assert CountOrPercent.from_plain("100%").to_plain() == "100%"


@pytest.mark.parametrize("data", ["50", "101%", "-1%", -1, True, 0.5, "%", None])
def test_what_is_neither_count_nor_percentage_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="must be a whole number such as 3 or a percentage"):
        CountOrPercent.from_plain(data)


def test_a_quantum_is_a_number_of_tokens_or_automatic() -> None:
    assert QuantumSetting.from_plain("Auto").tokens is None
    assert QuantumSetting.from_plain(8000).tokens == 8000
    assert [QuantumSetting.from_plain(data).to_plain() for data in ("Auto", 1)] == ["Auto", 1]


@pytest.mark.parametrize("data", ["auto", "8000", "", 0, -1, 2**31, True, 1.5, None])
def test_what_is_no_quantum_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="must be Auto or a whole number from 1 to 2147483647"):
        QuantumSetting.from_plain(data)


def test_isolation_is_a_percentage_or_off() -> None:
    shares = [IsolationSetting.from_plain(text).share for text in ("0%", "50%", "200%", "Off")]
    assert shares == [0.0, 0.5, 2.0, None]
    assert [IsolationSetting.from_plain(text).to_plain() for text in ("50%", "Off")] == [
        "50%",
        "Off",
    ]


@pytest.mark.parametrize(
    "data", ["off", "50", 50, 0.5, "201%", "-1%", "05%", "", True, None, "5 %"]
)
def test_what_is_no_isolation_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="must be Off or a percentage from 0% to 200%, not"):
        IsolationSetting.from_plain(data)
