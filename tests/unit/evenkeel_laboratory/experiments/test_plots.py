from pathlib import Path

from evenkeel_laboratory.experiments.plots import (
    REST,
    SHORTEST_S,
    client_colours,
    pairs_figure,
    plot_run,
    scaling_figure,
)
from evenkeel_simulator.traffic.summary import summarise

from tests.unit.evenkeel_simulator.traffic.test_summary import ended, record


def test_a_run_that_served_no_request_removes_older_plots(tmp_path: Path) -> None:
    served = [record("r1")]
    assert all(p.exists() for p in plot_run(served, summarise(served, 10.0), tmp_path, title="t"))
    refused = [ended("r1", "refused")]
    assert plot_run(refused, summarise(refused, 0.0), tmp_path, title="t") == []
    assert not list(tmp_path.glob("*.png"))


def test_only_the_clients_that_asked_for_most_have_colours_of_their_own() -> None:
    records = [record(f"r{n}", client=str(n), input_tokens=100 + n) for n in range(10)]
    colours = client_colours(summarise(records, 10.0))
    assert [name for name, colour in colours.items() if colour == REST] == ["0", "1"]
    assert len(set(colours.values())) == 9


def test_plots_show_the_twenty_clients_that_asked_for_most() -> None:
    records = [record(f"r{n}", client=str(n), input_tokens=100 + n) for n in range(1000)]
    assert list(client_colours(summarise(records, 10.0))) == [str(n) for n in range(980, 1000)]


def test_seconds_of_a_plan_are_on_a_logarithmic_axis_with_numbers() -> None:
    panels = {"share": {"a": (0.5, 0.6)}, "wait (s)": {"a": (0.0, 0.61), "b": (0.62, 40.0)}}
    share, wait = pairs_figure(panels, logarithmic=["wait (s)"]).axes
    assert (share.get_xscale(), wait.get_xscale()) == ("linear", "log")
    assert min(min(line.get_xdata()) for line in wait.lines) == SHORTEST_S
    narrow = pairs_figure({"wait (s)": {"a": (0.61, 0.62)}}, logarithmic=["wait (s)"]).axes[0]
    low, high = narrow.get_xlim()
    assert any(low <= tick <= high for tick in narrow.get_xticks())


def test_scalers_with_the_same_result_are_named_in_the_legend_only() -> None:
    names = ["evenkeel", "hpa", "static 6"]
    figure = scaling_figure(
        {name: [(0.0, 1), (9.0, 2)] for name in names},
        dict.fromkeys(names, (3600.0, 1.0)),
        title="",
    )
    assert [text.get_text() for text in figure.legends[0].texts] == names
    assert [list(axes.texts) for axes in figure.axes] == [[], []]
    assert len({line.get_marker() for line in figure.axes[1].lines}) == len(names)
