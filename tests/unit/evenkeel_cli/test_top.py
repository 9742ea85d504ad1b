"""`evenkeel top`: rates and shares from two readings of a router."""

from __future__ import annotations

import socket

import httpx
import msgspec
import pytest
from evenkeel_cli.top.command import TopError, _read
from evenkeel_cli.top.table import render
from evenkeel_cli.top.view import UnknownModelError, View, Views, make_view, make_views
from evenkeel_contract.adminstate import (
    STATE_VERSION,
    ClientAtReplica,
    ClientState,
    FleetState,
    LedgerState,
    PeerState,
    ReplicaState,
    RouterState,
    TenantState,
)
from rich.console import Console


def state(
    *, time_s: float, uptime_s: float, scale: int, in_flight: int = 1, waits: bool = True
) -> RouterState:
    """A router after `scale` times the same traffic: ads/chat received three times the service of seo/bot."""
    return RouterState(
        version=STATE_VERSION,
        time_s=time_s,
        uptime_s=uptime_s,
        namespace="ns",
        service="llama",
        model="m",
        fleet_policy="D2LPM",
        config_faults=("limits.x: unknown field",),
        replicas=(
            ReplicaState(
                name="r0",
                url="http://h:1",
                joined=True,
                routable=True,
                in_flight=2,
                input_tokens=100 * scale,
                cached_tokens=25 * scale,
                output_tokens=50 * scale,
                requests=9 * scale,
                failures=2 * scale,
                policy="DLPM",
                quantum=1500.0,
                waiting=3,
                running=4,
            ),
            ReplicaState(name="r1", url="http://h:2", joined=True),
            ReplicaState(name="r2", url="http://h:3"),
        ),
        tenants=(
            TenantState(
                namespace="ns",
                name="ads",
                weight=4,
                qoe=0.75 * scale,
                qoe_streams=scale,
                clients=(
                    ClientState(
                        identity="ns/ads/chat",
                        name="chat",
                        weight=3,
                        in_flight=in_flight,
                        input_tokens=10 * scale,
                        cached_tokens=5 * scale,
                        service=300.0 * scale,
                        owed=320.0 * scale,
                        backlogged=waits,
                        requests=7 * scale,
                        errors=scale,
                        replicas=(
                            ClientAtReplica(
                                replica="r0",
                                credit=10,
                                deficit=-1500,
                                service=200.0 * scale,
                                waiting=1,
                                running=2,
                                itl_tokens=100 * scale,
                                itl_s=3.0 * scale,
                            ),
                            ClientAtReplica(
                                replica="r1",
                                credit=5,
                                deficit=200,
                                service=100.0 * scale,
                                waiting=2,
                                itl_tokens=50 * scale,
                                itl_s=0.0,
                            ),
                        ),
                    ),
                    ClientState(identity="ns/ads/batch", name="batch"),
                ),
            ),
            TenantState(
                namespace="ns",
                name="seo",
                weight=1,
                clients=(
                    ClientState(
                        identity="ns/seo/bot",
                        name="bot",
                        in_flight=in_flight,
                        service=100.0 * scale,
                        owed=80.0 * scale,
                        backlogged=waits,
                    ),
                ),
            ),
        ),
    )


def test_rates_are_differences_over_the_time_between_two_readings() -> None:
    view = make_view(
        state(time_s=12, uptime_s=102, scale=3), state(time_s=10, uptime_s=100, scale=2)
    )
    assert view.window_s == 2
    first, second, third = view.replicas
    assert (first.service_per_s, first.hit_rate) == (100.0, 0.25)
    assert [replica.state for replica in view.replicas] == ["ready", "not ready", "gone"]
    assert second.service_per_s == 50
    assert second.hit_rate is None
    assert third.service_per_s == 0
    chat, batch, bot = view.clients
    assert (chat.share, bot.share, batch.share) == (0.75, 0.25, 0.0)
    assert chat.service_per_s == 150
    assert (chat.requests, chat.errors, chat.in_flight) == (21, 3, 1)
    assert (first.requests, first.failures, first.in_flight, first.running) == (27, 6, 2, 4)
    assert (chat.waiting, chat.running, chat.credit) == (3, 2, 15)
    assert (chat.behind, bot.behind) == (3 * (320 - 300), 3 * (80 - 100)), "of all time"
    assert (chat.deficit_min, chat.deficit_max) == (-1500, 200)
    assert bot.deficit_min is None
    assert (chat.itl_s, bot.itl_s) == (pytest.approx(0.02), None)
    assert [replica.quantum for replica in view.replicas] == [1500.0, 0.0, 0.0]
    assert view.qoe == {"ads": 0.75}, "no stream of seo was measured"


def test_requests_that_wait_at_a_gate_count_once() -> None:
    now = state(time_s=12, uptime_s=102, scale=3)
    r0, r1, r2 = now.replicas
    gated = (
        msgspec.structs.replace(r0, gate_waiting=3),
        msgspec.structs.replace(r1, gate_waiting=2),  # the ledger does not have them yet
        r2,
    )
    view = make_view(msgspec.structs.replace(now, replicas=gated, waiting=1), None)
    assert [replica.waiting for replica in view.replicas] == [3, 2, 0]
    assert view.waiting == 6


def test_owed_is_what_the_ledger_owed_in_the_window_to_clients_that_wait() -> None:
    chat, batch, bot = make_view(state(time_s=1, uptime_s=1, scale=1), None).clients
    assert (chat.owed, bot.owed) == (pytest.approx(0.8), pytest.approx(0.2))
    assert batch.owed is None
    light = make_view(state(time_s=1, uptime_s=1, scale=1, waits=False), None)
    assert [row.owed for row in light.clients] == [None, None, None]
    assert [row.share for row in light.clients] == [0.75, 0.0, 0.25]


def test_a_single_reading_covers_the_uptime() -> None:
    view = make_view(state(time_s=50, uptime_s=10, scale=1), None)
    assert (view.window_s, view.replicas[0].service_per_s) == (10, 20.0)


def test_rates_are_not_negative_after_a_restart() -> None:
    view = make_view(state(time_s=12, uptime_s=1, scale=1), state(time_s=10, uptime_s=100, scale=5))
    assert view.replicas[0].service_per_s == 200.0
    replica_only = make_view(
        state(time_s=12, uptime_s=102, scale=1), state(time_s=10, uptime_s=100, scale=5)
    )
    assert replica_only.replicas[0].service_per_s == 100.0, "its totals fell: it counts from 0"


def test_a_window_without_service_has_no_shares() -> None:
    now = state(time_s=10, uptime_s=100, scale=2)
    view = make_view(now, now)
    assert {row.share for row in view.clients} == {None}
    assert msgspec.json.decode(msgspec.json.encode(view))["window_s"] > 0


def test_the_header_shows_fairness_and_the_missing_parts_of_the_ledger() -> None:
    reported = msgspec.structs.replace(
        state(time_s=1, uptime_s=1, scale=1),
        fleet=FleetState(
            window_s=60, backlogged=2, share_error=0.25, lead_s=3.2, jain=0.875, bound_ratio=0.4
        ),
        ledger=LedgerState(
            closed_totals_version=7,
            open_accounts=3,
            store="Redis",
            store_error="no answer",
            uncounted=("r2",),
        ),
        peers=(
            PeerState(name="a", url="http://h:4", router="x", answer_age_s=0.1),
            PeerState(name="b", url="http://h:5", error="it answered 401"),
        ),
    )
    console = Console(width=400)
    with console.capture() as capture:
        console.print(render(make_view(reported, None), verbose=True))
    for words in (
        "Unfair: hurt in the last minute: a client (given 75% of what it was owed while it waited).",
        "QoE of streams: ads 0.75",
        "2 backlogged · share error 25.0% over 60 s · lead 3.2 s · Jain 0.875 · bound ratio 0.40",
        "closed totals version 7, 3 open replica accounts · 1 of 2 peers",
        "store Redis: no answer",
        "router b: it answered 401",
        "not counted: the service of r2",
    ):
        assert words in capture.get()


def test_the_verdict_is_the_sentence_of_the_router() -> None:
    sentence = "Unfair: ads/batch was given 43% of what it was owed while it waited."
    reported = msgspec.structs.replace(
        state(time_s=1, uptime_s=1, scale=1), fleet=FleetState(share_error=0.57, verdict=sentence)
    )
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(make_view(reported, None)))
    assert sentence in capture.get()


def test_under_light_load_the_verdict_is_that_no_client_waits() -> None:
    console = Console(width=200)
    with console.capture() as capture:
        light = state(time_s=1, uptime_s=1, scale=1, waits=False)
        console.print(render(make_view(light, None)))
    text = capture.get()
    assert "Fair: no client had to wait for another." in text
    for word in ("Jain", "deficit", "QoE", "closed totals", "prefix blocks", "80%"):
        assert word not in text, word


@pytest.mark.parametrize("width", [80, 200])
def test_the_tables_show_clients_replicas_and_faults(width: int) -> None:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(render(make_view(state(time_s=1, uptime_s=1, scale=1), None), verbose=True))
    text = capture.get()
    for word in (
        "ns/llama",
        "ads/chat",
        "75%",
        "80%",
        "-1.5k…200",
        "r0",
        "ready",
        "DLPM",
        "limits.x",
    ):
        assert word in text, word
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text.replace("-1.5k…200", ""), "nothing is cut"


def test_the_clients_with_the_largest_shares_come_first() -> None:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(make_view(state(time_s=1, uptime_s=1, scale=1), None)))
    lines = [line.split()[0] for line in capture.get().splitlines() if line.strip()]
    names = [word for word in lines if word.startswith(("ads/", "seo/"))]
    assert names == ["ads/chat", "seo/bot", "ads/batch"]


def test_a_fleet_without_ready_replicas_is_reported() -> None:
    console = Console(width=200)
    without_replicas = msgspec.structs.replace(state(time_s=1, uptime_s=1, scale=1), replicas=())
    with console.capture() as capture:
        console.print(render(make_view(without_replicas, None)))
    assert "no replica is configured" in capture.get()


def test_a_health_check_that_fails_is_named() -> None:
    console, why = Console(width=200), "its health check answers 500"
    r0 = ReplicaState(name="r0", url="http://h:1", loads=True, unready_reason=why)
    seen = msgspec.structs.replace(state(time_s=1, uptime_s=1, scale=1), replicas=(r0,))
    with console.capture() as capture:
        console.print(render(make_view(seen, None)))
    assert f"replica r0 is loading: {why}" in capture.get()


async def test_a_router_that_never_answers_is_named_with_the_reason() -> None:
    """The error of a time-out has no text of its own."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=0.1) as client:
            with pytest.raises(TopError, match=r"does not answer \(ReadTimeout\)"):
                await _read(client)


@pytest.mark.parametrize("standing", ["suspect", "returning"])
def test_a_suspect_is_named_with_its_reason(standing: str) -> None:
    r0, *others = state(time_s=1, uptime_s=1, scale=1).replicas
    suspicion = f"{standing}: the replica answered 429"
    r0 = msgspec.structs.replace(r0, routable=False, suspicion=suspicion)
    seen = msgspec.structs.replace(state(time_s=1, uptime_s=1, scale=1), replicas=(r0, *others))
    view = make_view(seen, None)
    assert [row.state for row in view.replicas] == [standing, "not ready", "gone"]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(render(view))
    assert f"replica r0 is {suspicion}" in capture.get()


def of_router(name: str, *, time_s: float, uptime_s: float, scale: int) -> RouterState:
    made = state(time_s=time_s, uptime_s=uptime_s, scale=scale)
    ledger = msgspec.structs.replace(made.ledger, router=name)
    return msgspec.structs.replace(made, ledger=ledger)


def test_a_router_that_restarted_within_an_interval_starts_a_new_window() -> None:
    before = of_router("one", time_s=10, uptime_s=2, scale=5)
    assert make_view(of_router("two", time_s=20, uptime_s=4, scale=1), before).window_s == 4


def test_a_changed_clock_is_not_a_restart() -> None:
    before = of_router("one", time_s=10, uptime_s=3600, scale=1)
    assert make_view(of_router("one", time_s=12, uptime_s=-50, scale=2), before).window_s == 2


def test_one_of_several_models_is_shown_by_any_of_its_names() -> None:
    own = msgspec.to_builtins(state(time_s=1, uptime_s=1, scale=1))
    services = [own | {"service": name, "names": [name.upper()]} for name in ("a", "b")]
    now = msgspec.convert(own | {"services": services}, RouterState)
    every = make_views(now, now)
    assert isinstance(every, Views)
    for name in ("b", "B"):
        view = make_views(now, now, name)
        assert isinstance(view, View)
        assert view == every.services[1]
    with pytest.raises(UnknownModelError, match="must be one of A, B, not 'c'"):
        make_views(now, now, "c")
