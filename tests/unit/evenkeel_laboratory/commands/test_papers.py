"""`evenkeel papers`: choices, files, and faults."""

from __future__ import annotations

from pathlib import Path

import msgspec
from evenkeel_cli import main
from evenkeel_cli.exitcode import ExitCode
from evenkeel_laboratory.commands import papers as papers_command
from evenkeel_laboratory.papers.panels import over_time
from evenkeel_laboratory.papers.results import Table
from typer.testing import CliRunner


def papers(*arguments: str):
    return CliRunner().invoke(main.build(["papers"]), ["papers", *arguments])


def test_one_experiment_writes_its_table_and_the_page_of_its_paper(tmp_path: Path) -> None:
    result = papers("--only", "vtc-fig16", "--quick", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "vtc-fig16: 4 of 4 rows met" in result.output
    table = msgspec.json.decode((tmp_path / "vtc-fig16.json").read_bytes(), type=Table)
    assert table.seconds > 0
    page = (tmp_path / "papers-vtc.md").read_text()
    assert table.title in page
    assert f"![{table.title}](vtc-fig16.png)" in page
    assert (tmp_path / "vtc-fig16.png").read_bytes().startswith(b"\x89PNG")
    (panel,) = table.panels
    assert [line.name for line in panel.lines] == [f"client-{n}" for n in range(1, 5)]
    rates = [sum(line.y) for line in panel.lines]
    assert rates == sorted(rates)


def test_without_plots_a_page_has_no_picture(tmp_path: Path, monkeypatch) -> None:
    table = Table(
        name="vtc-fig16",
        title="Fig. 16",
        about="",
        headings=("run",),
        rows=(),
        panels=(over_time("Rates", {"a": [(0, 1), (1, 2)]}, y="tokens/s"),),
    )
    monkeypatch.setattr(papers_command, "EXPERIMENTS", {"vtc-fig16": lambda _: table})
    result = papers("--only", "vtc-fig16", "--no-plots", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert {one.name for one in tmp_path.iterdir()} == {"vtc-fig16.json", "papers-vtc.md"}
    assert "![" not in (tmp_path / "papers-vtc.md").read_text()


def test_an_unknown_experiment_is_named_with_the_known_ones(tmp_path: Path) -> None:
    result = papers("--only", "vtc-fig99", "--out", str(tmp_path))
    assert result.exit_code == ExitCode.INVALID
    assert "vtc-fig99" in result.output and "vtc-fig16" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_missing_trace_is_named_with_the_option(tmp_path: Path) -> None:
    result = papers("--only", "vtc-table2", "--out", str(tmp_path), "--traces", str(tmp_path))
    assert result.exit_code == ExitCode.INVALID
    assert "arena27.csv.gz" in result.output and "--traces" in result.output
