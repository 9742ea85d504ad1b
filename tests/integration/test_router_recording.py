"""Recordings of a real router in front of simulated replicas: what they hold, what they never hold, and a disk that fails."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from evenkeel_cli.main import build
from evenkeel_contract.recording import (
    RECORDING_FILE_PATH,
    RECORDING_PATH,
    FleetLine,
    Header,
    RequestLine,
    decode_line,
)
from evenkeel_contract.recordingconfig import RecordingConfig, RecordingStart
from evenkeel_contract.routerconfig import PrefixConfig
from evenkeel_router.app import Router
from evenkeel_router.telemetry.recorder import Recorder
from typer.testing import CliRunner

from tests.support.routers import KEY, MODEL, fleet, until

SECRET = "the launch code is 0000 "
ALICE = {"x-api-key": KEY}


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4} | more


async def ask(router: Router, text: str, **more: Any) -> None:
    async with httpx.AsyncClient(base_url=router.url, headers=ALICE) as client:
        answer = await client.post("/v1/chat/completions", json=chat(text, **more))
        assert answer.status_code == 200, answer.text


def admin(router: Router) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.admin_port}")


def config(path: Path, **changes: Any) -> RecordingConfig:
    return RecordingConfig(file=str(path / "recording"), **changes)


async def fetched(router: Router) -> tuple[bytes, list[Any]]:
    async with admin(router) as client:
        data = (await client.get(RECORDING_FILE_PATH)).content
    return data, [decode_line(line) for line in data.splitlines()]


async def test_a_recording_holds_lengths_times_and_salted_prefixes_and_no_text(
    tmp_path: Path,
) -> None:
    prefix = PrefixConfig(text_block_bytes=16)
    async with fleet(2, recording=config(tmp_path), prefix=prefix) as (router, _):
        await ask(router, "before the start")
        async with admin(router) as client:
            started = (await client.put(RECORDING_PATH)).json()
            assert (started["recording"], started["requests"]) == (True, 0)
            await ask(router, SECRET * 8, stream=True, stream_options={"include_usage": True})
            await ask(router, SECRET * 8 + "more")
            await client.delete(RECORDING_PATH)
            await ask(router, "after the stop")
            stopped = (await client.get(RECORDING_PATH)).json()
        data, lines = await fetched(router)
    header, fleet_line, *requests = lines
    assert isinstance(header, Header)
    assert header.weights == {"ns/acme": 2, "ns/acme/*": 1, "ns/acme/chat": 3, "ns/acme/batch": 1}
    assert header.scheduling["fleetPolicy"] == "D2LPM"
    assert fleet_line.replicas == ("r0", "r1")
    assert (stopped["recording"], stopped["requests"], stopped["dropped"]) == (False, 2, 0)
    first, second = requests
    assert isinstance(first, RequestLine)
    assert (first.client, first.api) == ("ns/acme/chat", "/v1/chat/completions")
    assert (first.streamed, second.streamed) == (True, False)
    assert first.replica in fleet_line.replicas
    assert first.input_tokens > 0 < first.output_tokens
    assert first.ttft_s is not None
    assert 0 < first.ttft_s <= first.duration_s
    assert first.arrival_s < second.arrival_s
    assert len(first.blocks) > 8
    assert second.blocks[: len(first.blocks)] == first.blocks
    for never in (SECRET.encode(), b"launch", KEY.encode(), b"before", b"after"):
        assert never not in data


async def test_two_recordings_share_no_hash_unless_they_share_the_salt(tmp_path: Path) -> None:
    salt = json.dumps({"salt": "ab" * 32})
    seen = []
    async with fleet(1, recording=config(tmp_path)) as (router, _):
        for body in ("", "", salt, salt):
            async with admin(router) as client:
                await client.put(RECORDING_PATH, content=body)
            await ask(router, SECRET * 40)
            _, lines = await fetched(router)
            _, fleet_line, request = lines  # each recording begins with the fleet
            assert isinstance(fleet_line, FleetLine)
            assert request.blocks
            seen.append((lines[0].salt_id, request.blocks))
    assert seen[2] == seen[3]
    assert len(set(seen)) == 3
    assert not set(seen[0][1]) & set(seen[1][1])


async def test_the_oldest_requests_go_when_the_recording_is_full(tmp_path: Path) -> None:
    limits = config(tmp_path, max_bytes=12_000, start=RecordingStart.ALWAYS)
    async with fleet(1, recording=limits) as (router, _):
        async with httpx.AsyncClient(base_url=router.url, headers=ALICE) as client:
            for number in range(60):
                await client.post("/v1/chat/completions", json=chat("x" * 600 + str(number)))
        data, lines = await fetched(router)
        async with admin(router) as client:
            state = (await client.get(RECORDING_PATH)).json()
    kinds = Counter(type(line) for line in lines)
    assert kinds[Header] == kinds[FleetLine] == 2  # each file can be read without the other
    arrivals = [line.arrival_s for line in lines if isinstance(line, RequestLine)]
    assert arrivals == sorted(arrivals)
    assert 10 < len(arrivals) < 60 == state["requests"]
    assert len(data) == state["size_bytes"] <= 12_000


async def test_a_recording_is_fetched_with_the_lines_that_are_being_written(tmp_path: Path) -> None:
    async with fleet(1, recording=config(tmp_path)) as (router, _):
        recorder = Recorder(router.rooms, [])
        working = asyncio.create_task(recorder.run())  # closes the file at its end
        recorder.start()
        with recorder._writing:  # a disk that takes its time
            first = asyncio.create_task(recorder.flush())
            second = asyncio.create_task(recorder.flush())
            for _ in range(5):
                await asyncio.sleep(0)
            assert not second.done()
        await asyncio.gather(first, second)
        assert [path.name for path in recorder.paths()] == ["recording"]
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


@pytest.mark.parametrize("broken", ["no folder", "a folder"])
async def test_a_fault_of_the_disk_loses_lines_and_no_request(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "gone" / "recording" if broken == "no folder" else tmp_path
    wanted = RecordingConfig(file=str(file), start=RecordingStart.ALWAYS)
    async with fleet(1, recording=wanted) as (router, _):
        await ask(router, "x" * 600)
        await fetched(router)
        async with admin(router) as client:
            state = (await client.get(RECORDING_PATH)).json()
        assert state["fault"].startswith(str(file))
        assert (state["requests"], state["dropped"]) == (0, 1)
        if broken == "no folder":
            file.parent.mkdir()
            await ask(router, "y" * 600)
            _, lines = await fetched(router)
            assert sum(isinstance(line, RequestLine) for line in lines) == 1
            async with admin(router) as client:
                state = (await client.get(RECORDING_PATH)).json()
            assert (state["fault"], state["dropped"]) == ("", 1)


async def test_a_router_that_may_not_record_says_which_field_allows_it() -> None:
    async with fleet(1) as (router, _), admin(router) as client:
        refused = await client.put(RECORDING_PATH)
        state = (await client.get(RECORDING_PATH)).json()
        file = await client.get(RECORDING_FILE_PATH)
    assert refused.status_code == 403
    assert "spec.router.recording" in refused.json()["error"]["message"]
    assert (state["allowed"], file.content) == (False, b"")


async def test_requests_in_flight_at_the_stop_are_written_when_they_end(tmp_path: Path) -> None:
    async with fleet(1, recording=config(tmp_path)) as (router, _):
        async with admin(router) as client:
            await client.put(RECORDING_PATH)
            async with asyncio.TaskGroup() as group:
                group.create_task(ask(router, "x", max_tokens=60))
                await until(lambda: bool(router.rooms.intake.active_requests), "it to arrive")
                stopped = (await client.delete(RECORDING_PATH)).json()
                assert (stopped["recording"], stopped["open"]) == (False, 1)
        _, lines = await fetched(router)
    assert [line.output_tokens for line in lines if isinstance(line, RequestLine)] == [60]


async def test_a_salt_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    async with fleet(1, recording=config(tmp_path)) as (router, _), admin(router) as client:
        for body in ('{"salt": "abcd"}', '{"salt": "no"}', "{"):
            answer = await client.put(RECORDING_PATH, content=body)
            assert answer.status_code == 400, body
        assert "must have 32" in (await client.put(RECORDING_PATH, content='{"salt": "abcd"}')).text


async def test_the_command_starts_stops_and_fetches(tmp_path: Path) -> None:
    async with fleet(1, recording=config(tmp_path)) as (router, _):
        url, out = f"127.0.0.1:{router.admin_port}", tmp_path / "out.jsonl"

        async def record(action: str) -> str:
            arguments = ["record", action, "--url", url, "--out", str(out)]
            ran = await asyncio.to_thread(CliRunner().invoke, build(arguments), arguments)
            assert ran.exit_code == 0, ran.output
            return ran.output

        assert "does not record" in await record("status")
        await record("start")
        await ask(router, "x" * 600)
        assert "does not record; 1 requests" in await record("stop")
        await record("fetch")
    lines = [decode_line(line) for line in out.read_bytes().splitlines()]
    assert sum(isinstance(line, RequestLine) for line in lines) == 1
    arguments = ["record", "start", "--url", url]
    ran = CliRunner().invoke(build(arguments), arguments)
    assert (ran.exit_code, "--url selects the admin port" in ran.output) == (1, True)
