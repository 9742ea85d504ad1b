from pathlib import Path

from evenkeel_laboratory.experiments.plots import REST, client_colours, plot_run
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
