"""Medians and ratios over rounds."""

from bench.router.report import Run, markdown, ratio, spread


def runs() -> list[Run]:
    def run(number: int, contender: str, per_cpu_s: float) -> Run:
        figures = {
            "requests_per_s": 1.0,
            "cpu_us_per_request": 1e6 / per_cpu_s,
            "requests_per_cpu_s": per_cpu_s,
            "ttft_p50_ms": 1.0,
            "ttft_p99_ms": 1.0,
            "total_p99_ms": 1.0,
            "peak_rss_mib": 1.0,
            "events_per_read": None,
            "hit_rate": 0.5,
            "least_share": 0.5,
        }
        return Run(number, "unary", contender, figures)

    # The machine is half as fast in the last round, for both.
    return [
        run(number, contender, speed * factor)
        for number, speed in enumerate((1000, 1000, 500))
        for contender, factor in (("ours", 2), ("theirs", 1))
    ]


def test_a_ratio_is_taken_within_a_round() -> None:
    of = ratio(runs(), scenario="unary", contender="ours", reference="theirs")
    assert of is not None and (of.median, of.least, of.greatest) == (2, 2, 2)


def test_a_spread_holds_median_and_range() -> None:
    of = spread(runs(), scenario="unary", contender="ours", figure="requests_per_cpu_s")
    assert of is not None and (of.median, of.least, of.greatest) == (2000, 1000, 2000)


def test_the_table_shows_absent_figures_as_a_dash() -> None:
    rows = markdown(runs(), ["theirs"]).splitlines()
    ours = next(row for row in rows if row.startswith("| ours"))
    assert "2,000 (1,000–2,000)" in ours and "| – |" in ours and "2.00 (2.00–2.00)" in ours
