"""The text that a scrape gets: its format, its size, its labels and its words."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from evenkeel_contract.names import OTHER_CLIENTS
from evenkeel_contract.routerconfig import TenancyConfig, TenantConfig
from evenkeel_fairshare.fleet.contract import Usage
from evenkeel_router import slices
from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.identity import MAX_CLIENTS, client_of, other_clients
from evenkeel_router.ledger.fairness import Fairness
from evenkeel_router.ledger.totals import Histogram, RequestTotals
from evenkeel_router.telemetry import exposition
from evenkeel_router.telemetry.metrics import metrics
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.slices import SharedText
from prometheus_client.parser import text_string_to_metric_families

from tests.support.promtool import promtool
from tests.support.routers import config_for


def served(clients: int, *, tenants: int = 20, max_clients: int = MAX_CLIENTS) -> Rooms:
    """A router that served so many clients, every second one with an error."""
    listed = tuple(TenantConfig(namespace="ns", name=f"tenant-{n}") for n in range(tenants))
    rooms = Rooms.make(config_for(tenancy=TenancyConfig(tenants=listed)))
    ledger = rooms.service_ledger
    rooms.totals = RequestTotals(ledger.accounting.cost, max_clients=max_clients)
    ledger.fairness = Fairness(ledger.ledger, max_clients=max_clients)
    for n in range(clients):
        client = client_of(listed[n % tenants], f"client-{n}")
        totals = rooms.totals.of(client)
        totals.requests += 1
        totals.used(Usage(100, 40, 10))
        totals.ended(2.0, 0.5)
        totals.streamed(1.8, 10)
        totals.errors[Outcome.RATE_LIMITED] += n % 2
        rooms.service_ledger.ledger.received("r0", client.identity, 70.0)
    computed(rooms)
    return rooms


def computed(rooms: Rooms) -> None:
    """Compute the fairness figures anew."""
    ledger = rooms.service_ledger
    for _ in ledger.fairness.steps((), ledger.weights, 1.0):
        pass


def scrape(rooms: Rooms) -> str:
    return "".join(metrics(rooms))


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Value by name and labels; no series may come twice."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name.removeprefix("evenkeel_router_"), frozenset(sample.labels.items())
            assert key not in found, key
            found[key] = sample.value
    return found


def labelled(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset({"model_name": "llama", **labels}.items())


async def test_a_scrape_of_a_thousand_clients_is_bounded() -> None:
    """10.6 MB before, with a histogram of each kind for each client."""
    text = scrape(served(MAX_CLIENTS))
    assert len(text) < 2_100_000
    assert len(scrape(served(2 * MAX_CLIENTS))) < 1.1 * len(text)
    histograms = re.findall(r"^# TYPE (\S+) histogram$", text, re.MULTILINE)
    assert histograms
    assert not [line for line in text.splitlines() if "_bucket{" in line and "client=" in line]


async def test_a_scrape_with_a_thousand_tenants_is_bounded() -> None:
    text = scrape(served(MAX_CLIENTS, tenants=MAX_CLIENTS))
    assert len(text) < 3_100_000


async def test_requests_run_while_a_scrape_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is small: a client's lines in one family, or one histogram."""
    rooms = served(100)
    assert max(text.count("\n") for text in metrics(rooms)) < 25
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    shared = SharedText(lambda: metrics(rooms))
    rendering, turns = asyncio.create_task(shared.get()), 0
    while not rendering.done():
        # A request of a new client, an error of a known one, and a replica that leaves.
        client = client_of(TenantConfig(namespace="ns", name="late"), f"new-{turns}")
        rooms.totals.of(client).errors[Outcome.CLIENT_GONE] += 1
        computed(rooms) if turns % 500 == 0 else None
        await asyncio.sleep(0)
        turns += 1
    assert turns > 1000
    series(b"".join(rendering.result()).decode())


async def test_counts_and_sum_of_a_histogram_agree() -> None:
    found = series(scrape(served(10, tenants=1)))
    own = labelled(tenant="tenant-0")
    assert found["request_ttft_seconds_count", own] == 10
    assert found["request_ttft_seconds_sum", own] == 5.0
    assert found["request_ttft_seconds_bucket", own | {("le", "+Inf")}] == 10
    assert found["request_ttft_seconds_bucket", own | {("le", "0.25")}] == 0
    assert found["request_ttft_seconds_bucket", own | {("le", "0.5")}] == 10
    own = labelled(tenant="tenant-0", client="client-3")
    assert found["client_ttft_seconds_sum", own] == 0.5
    assert found["client_ttft_seconds_count", own] == 1
    assert (found["client_itl_seconds_sum", own], found["client_itl_seconds_count", own]) == (
        1.8,
        9,
    )
    bucket = labelled(tenant="tenant-0", le="0.25")
    assert found["request_itl_seconds_bucket", bucket] == 10
    assert found["request_itl_seconds_bucket", labelled(tenant="tenant-0", le="0.15")] == 0
    tokens = [found[f"client_{kind}_tokens_total", own] for kind in ("input", "cached", "output")]
    assert tokens == [100, 40, 10]


async def test_clients_named_like_a_catch_all_have_series_of_their_own() -> None:
    """`*` and `other` are names that a trusted proxy may send; replicas report other clients as `*`."""
    rooms = served(8, tenants=1, max_clients=10)
    tenant = TenantConfig(namespace="ns", name="tenant-0")
    received = rooms.service_ledger.ledger.received
    names = ("*", "other", "late")
    for n, name in enumerate(names):
        client = client_of(tenant, name)
        rooms.totals.of(client).requests += n + 1
        received("r0", client.identity, 1000.0 + n)
    received("r0", other_clients("ns/tenant-0"), 5000.0)
    computed(rooms)
    found = series(scrape(rooms))
    for n, name in enumerate(("*", "other", OTHER_CLIENTS)):
        assert found["request_total", labelled(tenant="tenant-0", client=name)] == n + 1
    for n, name in enumerate(names):
        assert found["service_total", labelled(tenant="tenant-0", client=name)] == 1000.0 + n
    others = found["service_total", labelled(tenant="tenant-0", client=OTHER_CLIENTS)]
    assert others == 5000.0 + 70.0 * 2  # two of the least served clients have no series


async def test_other_clients_keep_their_tenant() -> None:
    found = series(scrape(served(140, max_clients=100)))
    requests = {labels: value for (name, labels), value in found.items() if name == "request_total"}
    assert sum(requests.values()) == 140
    for n in range(20):
        assert requests[labelled(tenant=f"tenant-{n}", client=OTHER_CLIENTS)] == 2
    assert labelled(tenant="other", client="other") not in requests


def test_labels_are_escaped() -> None:
    own = exposition.labels(client='a"b\\c\nd', tenant="é")
    text = "".join(exposition.counter("x", "Help.", [(own, 1)]))
    (family,) = text_string_to_metric_families(text)
    (sample,) = family.samples
    assert sample.labels == {"client": 'a"b\\c\nd', "tenant": "é"}


def test_a_histogram_without_values_is_all_zeros() -> None:
    text = "".join(exposition.histogram("x", "Help.", [('a="b"', Histogram((1, 2)))]))
    (family,) = text_string_to_metric_families(text)
    assert [sample.value for sample in family.samples] == [0.0] * 5


async def test_promtool_finds_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "scrape"
    path.write_text(scrape(served(50)))
    with path.open() as given:
        assert promtool("check", "metrics", given=given) == (0, "")


async def test_every_metric_has_help_in_plain_sentences() -> None:
    rooms = served(3)
    helps = dict(re.findall(r"^# HELP evenkeel_router_(\S+) (.*)$", scrape(rooms), re.MULTILINE))
    assert len(helps) > 60
    for name, text in helps.items():
        assert re.fullmatch(r"[A-Z0-9].*[^.]\.", text), name
        assert all(len(sentence.split()) <= 25 for sentence in text.split(". ")), name
