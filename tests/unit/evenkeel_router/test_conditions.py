"""The conditions of alerts that a router judges itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from evenkeel_contract.adminstate import PeerState
from evenkeel_contract.consolestate import AlertCondition
from evenkeel_contract.federationconfig import CellConfig
from evenkeel_router.fleet.replicas import ReplicaReport
from evenkeel_router.fleet.suspicion import Evidence
from evenkeel_router.ledger.contacts import CellContact
from evenkeel_router.telemetry.conditions import conditions, runbook
from evenkeel_router.telemetry.history import RateWindow
from evenkeel_router.telemetry.recent import NO_REQUESTS, Recent, judged
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.routers import config_for

ALERTS = Path(__file__).parents[3] / "monitoring/alerts/service.yaml"


def healthy() -> Rooms:
    """A router with one replica that reported at time 0."""
    rooms = Rooms.make(config_for(max_lead_s=60.0, max_share_error_percent=15))
    rooms.replicas.fleet.ready(rooms.replicas.fleet.add("r0"))
    rooms.service_ledger.accounting.meets("r0", "i", policy="DLPM", now_s=0.0)
    rooms.replicas.reports["r0"] = ReplicaReport(
        incarnation="i", policy="DLPM", sequence=1, received_s=0.0, counted=True
    )
    return rooms


def found_in(
    rooms: Rooms,
    *,
    now_s: float = 1.0,
    cpu: float = 0.0,
    peers: tuple[PeerState, ...] = (),
    recent: Recent = NO_REQUESTS,
) -> tuple[AlertCondition, ...]:
    return conditions(rooms, RateWindow(seconds=10.0, cpu=cpu), peers, now_s, recent=recent)


def with_figures(rooms: Rooms, **figures: Any) -> None:
    fairness = rooms.service_ledger.fairness
    fairness.now = msgspec.structs.replace(fairness.now, **figures)


def drains(rooms: Rooms) -> None:
    (member,) = rooms.replicas.fleet
    member.unschedulable, member.unschedulable_since_s = "draining", -399.0


def test_a_rollout_that_drains_replicas_is_no_problem() -> None:
    rooms = healthy()
    drains(rooms)
    found = {one.alert: one for one in found_in(rooms, now_s=-69.0)}
    drain = found["EvenkeelDrainStuck"]
    assert (drain.problem, drain.message) == (False, "Draining: r0 for 330 s.")


def unready(rooms: Rooms) -> None:
    (member,) = rooms.replicas.fleet
    rooms.replicas.fleet.unready(member)


def is_uncounted(rooms: Rooms) -> None:
    rooms.replicas.fleet.ready(rooms.replicas.fleet.add("r1"))


def is_suspect(rooms: Rooms) -> None:
    (member,) = rooms.replicas.fleet
    member.standing.suspect(Evidence("failed", "it answered 500"), 0.0)


def is_misconfigured(rooms: Rooms) -> None:
    rooms.settings.faults = ("listen: is missing",)


def lost_a_cell(rooms: Rooms) -> None:
    rooms.service_ledger.cell_contacts = {
        CellConfig(name="oslo", url="https://oslo"): CellContact(since_s=0.0, error="it answered 401"),
        CellConfig(name="rome", url="https://rome"): CellContact(since_s=0.0, counts=True),
    }  # fmt: skip


def test_a_healthy_router_has_no_problem() -> None:
    assert [one for one in found_in(healthy()) if one.problem] == []


def test_the_names_are_those_of_alerts() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    assert {one.alert for one in found_in(healthy())} - {""} < alerts


@pytest.mark.parametrize(
    ("change", "given", "want"),
    [
        (
            lambda rooms: with_figures(rooms, share_error=0.16),
            {},
            ("EvenkeelShareSkewed", "The share error is 16%; 15% is allowed."),
        ),
        (
            lambda rooms: with_figures(rooms, lead_s=61.0),
            {},
            ("EvenkeelLeadTooLong", "The lead is 61.0 s of fair service; 60 s are allowed."),
        ),
        (
            lambda rooms: with_figures(rooms, given_over_owed={"ns/a/b": 0.4, "ns/a/c": 0.9}),
            {},
            ("EvenkeelClientStarved", "Given less than half of what they were owed: a/b."),
        ),
        (None, {"now_s": 31.0}, ("EvenkeelLedgerStale", "No report for 31 s: r0.")),
        (
            drains,
            {},
            ("EvenkeelDrainStuck", "Draining: r0 for 400 s; 330 s are usual at most."),
        ),
        (unready, {}, ("EvenkeelReplicasMissing", "0 of 1 replicas take requests.")),
        (
            None,
            {"recent": Recent(endings=Counter(answered=4, given_up=1, given_up_beyond=1))},
            (
                "EvenkeelRequestsGivenUp",
                "Clients gave up 2 of 6 requests of the last minute, 1 of them by clients that ask for more than their share.",
            ),
        ),
        (
            is_uncounted,
            {},
            ("EvenkeelReplicasUncounted", "The ledger does not count the service of r1."),
        ),
        (
            None,
            {"cpu": 0.95},
            (
                "EvenkeelRouterSaturated",
                "This router uses 95% of a core, and 0 of 4096 requests are in flight.",
            ),
        ),
        (
            None,
            {"peers": (PeerState(name="b", url="http://h", error="it answered 401"),)},
            ("", "Router b does not answer: it answered 401."),
        ),
        (
            None,
            {"recent": Recent(endings=Counter(answered=4, timeout=1))},
            (
                "EvenkeelRequestsFailing",
                "1 of 5 requests of the last minute failed: timeout 1.",
            ),
        ),
        (
            None,
            {"recent": Recent(replicas=Counter({("r0", True): 2, ("r0", False): 2}))},
            ("EvenkeelReplicaFailing", "Replica r0 failed 50% of its latest requests."),
        ),
        (
            is_suspect,
            {},
            ("EvenkeelReplicaSuspect", "Replica r0 is suspect: it answered 500."),
        ),
        (
            lost_a_cell,
            {},
            ("EvenkeelCellSilent", "Cells that do not count: oslo (it answered 401)."),
        ),
        (is_misconfigured, {}, ("", "The newest configuration is invalid: listen: is missing")),
    ],
)
def test_a_problem_comes_first_and_says_what_it_is(
    change: Callable[[Rooms], None] | None, given: dict[str, Any], want: tuple[str, str]
) -> None:
    rooms = healthy()
    if change is not None:
        change(rooms)
    found = found_in(rooms, **given)
    assert (found[0].alert, found[0].message) == want
    assert [one.problem for one in found] == [True] + [False] * (len(found) - 1)


def test_a_router_without_thresholds_does_not_compare() -> None:
    rooms = Rooms.make(config_for())
    alerts = {one.alert for one in found_in(rooms)}
    assert not alerts & {"EvenkeelShareSkewed", "EvenkeelLeadTooLong"}


def test_an_alert_leads_to_the_runbook_that_the_rules_name() -> None:
    alerts = [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    pages = {
        rule["alert"]: rule["annotations"]["runbook_url"] for rule in alerts if "alert" in rule
    }
    rooms = Rooms.make(config_for(runbooks="https://wiki.example/evenkeel/"))
    found = {one.alert: one.runbook for one in found_in(rooms)}
    assert "EvenkeelReplicasMissing" in found
    for alert, address in found.items():
        assert address == pages[alert].replace("@{runbooks}", "https://wiki.example/evenkeel")
    assert {alert: runbook("@{runbooks}", alert) for alert in pages} == pages


def test_a_router_that_does_not_know_the_runbooks_links_to_none() -> None:
    assert {one.runbook for one in found_in(healthy())} == {""}


@pytest.mark.parametrize(
    ("endings", "failed", "given_up"),
    [
        (
            {"client_gone": 45, "replica_failed": 40, "answered": 45, "rate_limited": 9},
            (True, "40 of 85 requests of the last minute failed: replica_failed 40."),
            (False, "No client gave up."),
        ),
        (
            {"given_up": 7, "given_up_beyond": 34},
            (False, "No request failed."),
            (True, "Clients gave up 41 of 41 requests of the last minute."),
        ),
        (
            {"given_up_beyond": 60},
            (False, "No request failed."),
            (True, "Clients gave up 60 of 60 requests of the last minute."),
        ),
        (
            {"answered": 388, "given_up": 1, "given_up_beyond": 28, "timeout": 1},
            (False, "1 of 418 requests of the last minute failed: timeout 1."),
            (
                False,
                "Clients gave up 29 of 418 requests of the last minute, 28 of them by clients that ask for more than their share.",
            ),
        ),
        (
            {"answered": 2, "given_up_beyond": 28},
            (False, "No request failed."),
            (
                False,
                "Clients gave up 28 of 30 requests of the last minute, by clients that ask for more than their share.",
            ),
        ),
    ],
)
def test_requests_that_are_lost_have_one_count_in_condition_and_verdict(
    endings: dict[str, int], failed: tuple[bool, str], given_up: tuple[bool, str]
) -> None:
    rooms, recent = healthy(), Recent(endings=Counter(endings))
    found = {one.alert: (one.problem, one.message) for one in found_in(rooms, recent=recent) if "token" not in one.message}  # fmt: skip
    assert found["EvenkeelRequestsFailing"] == failed
    assert found["EvenkeelRequestsGivenUp"] == given_up
    verdict = judged(rooms, recent, 1.0).sentence
    counts = [int(one) for one in re.findall(r"\d+", verdict.partition("Fair: ")[2] or verdict)]
    lost = recent.failed + recent.given_up
    told = {recent.failed, recent.given_up, recent.ended} - {0}
    assert set(counts) >= (told if recent.answered else {lost})


def test_an_outage_whose_clients_leave_soon_is_a_problem() -> None:
    messages = {one.message for one in found_in(healthy(), recent=Recent(endings=Counter(client_gone=4))) if one.problem}  # fmt: skip
    assert messages == {"None of 4 requests of the last minute was answered; their clients left."}
