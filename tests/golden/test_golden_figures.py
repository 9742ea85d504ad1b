"""Every figure that a router shows, of one state: metrics, `/v1/state`, the console, `evenkeel top`, a recording.

Programs of others read these names. If a change is meant, write the files anew and read the difference in review:

    EVENKEEL_WRITE_GOLDEN=1 python -m pytest tests/golden/test_golden_figures.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from evenkeel_cli.top.table import render
from evenkeel_cli.top.view import make_view
from evenkeel_contract.adminstate import decode_state
from evenkeel_fairshare.fleet.contract import EMPTY, Usage
from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.identity import other_clients
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.console import hour_answer, now_answer
from evenkeel_router.telemetry.history import TICKS, WHOLE_SERVICE, History
from evenkeel_router.telemetry.metrics import metrics
from evenkeel_router.telemetry.recent import seen
from evenkeel_router.telemetry.recorder import Recorder
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.sampler import read
from evenkeel_router.telemetry.snapshot import replicas_state, router_state
from rich.console import Console

from tests.support.figure_scenes import (
    CHAT,
    grown,
    pretty,
    scene,
    settled,
    settled_lines,
    waiting_at_gate,
)
from tests.support.steps import result_of

GOLDEN = Path(__file__).parent / "figures"
ACME = CHAT.tenant_identity


def same(name: str, text: str) -> None:
    """The golden file has this text."""
    path = GOLDEN / name
    if os.environ.get("EVENKEEL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs"


@pytest.fixture
def rooms(tmp_path: Path) -> Iterator[Rooms]:
    """The router after a first round of traffic."""
    made = scene(tmp_path)
    grown(made, 1)
    yield made


def state_of(rooms: Rooms, now_s: float) -> bytes:
    return result_of(router_state(rooms, now_s, result_of(seen(rooms, now_s))))


def sampled(rooms: Rooms, rounds: int) -> History:
    """The console's history over so many rounds of traffic, two seconds apart."""
    history = History()
    for n in range(2, rounds + 2):
        result_of(history.add(result_of(read(rooms, 2.0 * n))))
        grown(rooms, n)
    return history


async def test_every_metric_of_a_scrape(rooms: Rooms) -> None:
    waiting_at_gate(rooms)
    for n in (2, 3):
        grown(rooms, n)
    text = "".join(metrics(rooms))
    same("metrics.txt", settled_lines(text))


async def test_every_field_of_the_states(rooms: Rooms) -> None:
    waiting_at_gate(rooms)
    for n in (2, 3):
        grown(rooms, n)
    same("state.json", pretty(state_of(rooms, 30.0)))
    same("replicas.json", pretty(result_of(replicas_state(rooms, 30.0))))


@pytest.mark.parametrize("scope", [WHOLE_SERVICE, ACME], ids=["service", "tenant"])
async def test_every_field_of_the_console(rooms: Rooms, scope: str) -> None:
    waiting_at_gate(rooms)
    history = sampled(rooms, 3 * TICKS)
    name = "tenant" if scope else "service"
    now = result_of(now_answer(rooms, history, 30.0, tenant=scope))
    same(f"console-{name}.json", pretty(msgspec.json.encode(now)))
    hour = {
        client: msgspec.to_builtins(
            result_of(hour_answer(rooms, history, 30.0, tenant=scope, client=client))
        )
        for client in ("", CHAT.identity, other_clients("ns/big corp"), "ns/big%20corp/*")
    }
    same(f"hour-{name}.json", pretty(json.dumps(hour).encode()))


async def test_every_field_and_column_of_top(rooms: Rooms) -> None:
    waiting_at_gate(rooms)
    grown(rooms, 2)
    before = decode_state(state_of(rooms, 20.0))
    grown(rooms, 3)
    now = decode_state(state_of(rooms, 30.0))
    for name, earlier in (("window", before), ("start", None)):
        view = make_view(msgspec.structs.replace(now, uptime_s=60.0), earlier)
        same(f"top-{name}.json", pretty(msgspec.json.encode(view)))
        rows = tuple(sorted(view.clients, key=lambda row: (row.tenant, row.client)))
        view = msgspec.structs.replace(view, clients=rows)
        for verbose in (False, True):
            console = Console(width=150, color_system=None)
            with console.capture() as capture:
                console.print(render(view, verbose=verbose), highlight=False)
            same(f"top-{name}{'-verbose' * verbose}.txt", capture.get().replace("60 s", "clock"))


async def test_every_field_of_a_recording(rooms: Rooms) -> None:
    recorder = Recorder(rooms, [])
    recorder.start(bytes(32))
    now_s = recorder._from_s
    plan = rooms.replicas.fleet.match("c", weight=1.0, text=b"y" * 600, input_tokens=150)
    assert rooms.replicas.fleet.select(plan, EMPTY) is not None
    for outcome, first_s in ((None, now_s + 0.75), (Outcome.CLIENT_GONE, None)):
        ended = RequestState("id", "/v1/completions", now_s + 0.5, client=CHAT, replica="r0")
        ended.usage, ended.usage_reported = Usage(9, 4, 3), outcome is None
        ended.first_byte_s, ended.outcome, ended.stream = first_s, outcome, outcome is None
        recorder.add(ended, 1.5)
    await recorder.flush()
    (path,) = recorder.paths()
    lines = [settled(json.loads(line)) for line in path.read_text().splitlines()]
    lines[1]["at_s"] = "clock"
    same("recording.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    assert recorder._files is not None
    recorder._files.close()
