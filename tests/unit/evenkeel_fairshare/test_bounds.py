"""The bound under churn in figures, as docs/design/0003 writes it."""

from evenkeel_fairshare.bounds import Churn, churn_gap, churn_gap_from_level, standing_range

PLAIN = Churn(replicas=3, overshoot=1000, quantum=100)
ALL = Churn(replicas=3, overshoot=1000, quantum=100, crash_loss=7, deferred_refills=8, unsettled=2)


def test_without_weights_and_errors_it_is_that_of_a_fleet_that_never_changes():
    assert churn_gap(PLAIN) == 2 * (3 * (1000 + 100) + 2)
    assert churn_gap_from_level(PLAIN) == 3 * (1000 + 100) + 2


def test_deferred_refills_lost_work_and_unknown_events_widen_the_gap():
    error = 1 + 2 * (1000 + 8 * 100 + 100 + 7)
    assert ALL.seed_error() == error
    assert standing_range(ALL) == (-(3 * 107 + error), 3 * 1800 + error)
    assert churn_gap(ALL) == 2 * (3 * (1800 + 107) + 2 * error)


def test_weights_scale_quanta_and_divide_what_is_over():
    assert ALL.max_credit(2.0) == 207
    assert ALL.max_debt(2.0) == 1000 + 1600
    assert standing_range(PLAIN, 2.0) == (-(3 * 200 + 1) / 2, (3 * 1000 + 1) / 2)
    assert churn_gap(PLAIN, (1.0, 2.0)) == 3 * 1100 + 2 + (3 * 1200 + 2) / 2
    assert churn_gap_from_level(PLAIN, (1.0, 2.0)) == 3001 + (3 * 200 + 1) / 2


def test_a_range_is_whole_tokens_wide_as_seeds_are():
    assert ALL.max_credit(0.333) == 34 + 7
    assert ALL.max_debt(0.333) == 1000 + 267
