"""`clientQuantum: Auto`: a share of a second of the measured service (R2; docs/design/0005)."""

import pytest
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import (
    FIRST_QUANTUM,
    LARGEST_QUANTUM,
    PERIOD_S,
    SHARE_S,
    SMALLEST_QUANTUM,
    DeficitRules,
    MeasuredQuantum,
)
from evenkeel_fairshare.replica.dlpm import Dlpm


def passes(quantum: MeasuredQuantum, rate: float, *, seconds: float, start_s: float = 0.0) -> int:
    """A pass each half second at a steady rate; returns the number of changes."""
    steps = range(int(seconds * 2) + 1)
    times_s = (start_s + step / 2 for step in steps)
    return sum(quantum.begin_pass(now_s, now_s * rate) for now_s in times_s)


@pytest.mark.parametrize(
    ("rate", "want"),
    [
        (2000.0, 2000 * SHARE_S),
        (40_000.0, 40_000 * SHARE_S),
        (10.0, SMALLEST_QUANTUM),
        (1e9, LARGEST_QUANTUM),
    ],
)
def test_the_quantum_is_a_share_of_a_second_of_the_service(rate: float, want: float) -> None:
    quantum = MeasuredQuantum()
    assert quantum.value == FIRST_QUANTUM
    assert passes(quantum, rate, seconds=3 * PERIOD_S) == 1
    assert quantum.value == want


def test_a_measurement_close_to_the_quantum_in_force_changes_nothing() -> None:
    quantum = MeasuredQuantum()
    assert passes(quantum, FIRST_QUANTUM / SHARE_S * 1.2, seconds=3 * PERIOD_S) == 0
    assert quantum.value == FIRST_QUANTUM


def test_time_without_waiting_requests_does_not_count() -> None:
    quantum = MeasuredQuantum()
    service = 0.0
    for burst in range(100):
        quantum.queue_was_empty()
        began_s = 1000.0 * burst
        for now_s in (began_s, began_s + PERIOD_S / 10):
            changed = quantum.begin_pass(now_s, service)
            service += 2000 * PERIOD_S / 10
        if changed:
            break
    assert burst == 9
    assert quantum.value == pytest.approx(2000 * SHARE_S)


def test_a_later_measurement_replaces_an_earlier_one() -> None:
    quantum = MeasuredQuantum()
    passes(quantum, 2000.0, seconds=PERIOD_S)
    quantum.queue_was_empty()
    passes(quantum, 8000.0, seconds=PERIOD_S, start_s=100.0)
    assert quantum.value == 8000 * SHARE_S


def test_dlpm_takes_the_measured_quantum() -> None:
    policy = Dlpm()
    for number in range(40):
        client = f"ns/t/{number % 2}"
        policy.arrive(Request(f"r{number}", client, "ns/t", 0.0, 4000, 1), 0.0)
    quanta = []
    for second in range(int(PERIOD_S) + 1):  # one request of 4000 tokens each second
        admissions = policy.admissions(float(second))
        request = next(admissions)
        quanta.append(policy.quantum)
        request.extend_tokens = request.input_tokens
        admissions.send(AdmissionResult.ADMITTED)
        admissions.close()
    assert quanta == [FIRST_QUANTUM] * 10 + [4000 * SHARE_S]
    members = policy.tenants.members["ns/t"].children.members.values()
    assert {member.quantum for member in members} == {4000 * SHARE_S}


def test_service_elsewhere_counts_as_service_of_the_replica() -> None:
    policy = Dlpm()
    policy.arrive(Request("r", "ns/t/c", "ns/t", 0.0, 10, 1), 0.0)
    for second in range(int(PERIOD_S) + 1):
        next(policy.admissions(float(second)))
        policy.served_elsewhere("ns/t/other", "ns/t", 4000.0)
    assert policy.quantum == 4000 * SHARE_S


def test_a_given_quantum_stays() -> None:
    policy = Dlpm(rules=DeficitRules(quantum=70.0))
    policy.arrive(Request("r", "ns/t/c", "ns/t", 0.0, 10, 1), 0.0)
    for second in range(3 * int(PERIOD_S)):
        next(policy.admissions(float(second)))
    assert policy.quantum == 70.0


def test_a_change_of_the_quantum_leaves_all_deficits_as_they_are() -> None:
    policy = Dlpm(rules=DeficitRules(quantum=1000.0))
    for number in range(6):
        policy.arrive(Request(f"r{number}", f"ns/t/{number % 2}", "ns/t", 0.0, 700, 1), 0.0)
    admissions = policy.admissions(0.0)
    next(admissions).extend_tokens = 700
    admissions.send(AdmissionResult.ADMITTED)
    before = {name: state.deficit for name, state in policy.clients().items()}
    policy.change_quantum(50.0)
    assert {name: state.deficit for name, state in policy.clients().items()} == before
    assert len(set(before.values())) == 2
