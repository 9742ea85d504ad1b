"""`evenkeel up` from the outside: real processes and requests, and no process left afterwards."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest
from evenkeel_cli.manifest import load_manifest
from evenkeel_cli.up.fleet import STARTS_AT_ONCE
from evenkeel_simulator.engine.profiles import PROFILES

from tests.support.up_process import DEADLINE_S, FILE, Up

TWO_MODELS = Path(__file__).parents[2] / "examples" / "two-models.yaml"
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"

pytestmark = pytest.mark.usefixtures("source_path")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def begin(*arguments: str, log: str = "up.log") -> Up:
        started.append(Up(tmp_path, *arguments, log=log))
        return started[-1]

    yield begin
    for up in started:
        if up.process.poll() is None:
            up.process.kill()
        up.process.wait()


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_quickstart_runs_and_its_curl_line_streams(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    text = QUICKSTART.read_text()
    (tmp_path / "fleet.yaml").write_text(text)
    up = start()
    up.until_ready()
    line = next(line for line in up.output.splitlines() if line.startswith("curl "))
    words = shlex.split(line)
    url = next(word for word in words if word.startswith("http"))
    headers = dict(word.split(": ", 1) for flag, word in itertools.pairwise(words) if flag == "-H")
    body = json.loads(words[words.index("-d") + 1])
    with httpx.stream(
        "POST", url, headers=headers, json=body, timeout=DEADLINE_S, trust_env=False
    ) as response:
        events = [line for line in response.iter_lines() if line]
    assert response.status_code == 200
    assert len(events) >= body["max_tokens"], "one event per token: it streams"
    assert events[-1] == "data: [DONE]"
    tenants = {tenant.name: tenant.weight for tenant in up.state().tenants}
    assert tenants == {"ads": 4, "search": 2, "support": 2, "research": 1}
    assert len(up.state().replicas) == 3
    for line in ("console", "tenants"):
        page = httpx.get(up._found(rf"{line} (http://\S+)"), trust_env=False)
        assert (page.status_code, "Evenkeel console" in page.text) == (200, True)
    pids = up.pids()
    assert sorted(pids) == ["replica-0", "replica-1", "replica-2", "router"]
    assert up.stop(signal.SIGINT) == 0
    assert all(gone(pid) for pid in pids.values())
    assert not list((tmp_path / ".evenkeel").glob("*/state.json")), "no record is left"


def test_two_models_run_behind_one_address_and_follow_the_file(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    text = TWO_MODELS.read_text()
    (tmp_path / "fleet.yaml").write_text(text)
    up = start()
    up.until_ready()
    headers = {"Authorization": "Bearer sk-ads-chat"}

    def ask(model: str) -> httpx.Response:
        body = {"model": model, "prompt": "hello", "max_tokens": 4}
        return httpx.post(
            f"{up.url}/v1/completions",
            json=body,
            headers=headers,
            timeout=DEADLINE_S,
            trust_env=False,
        )

    assert [ask(model).json()["model"] for model in ("smart", "gpt-4o", "llama-3.1-8b")] == [
        "llama-3.3-70b",
        "llama-3.3-70b",
        "llama-3.1-8b",
    ]
    assert ask("llama-3.3-70b").status_code == 404
    listed = httpx.get(f"{up.url}/v1/models", headers=headers, trust_env=False).json()["data"]
    assert {"smart", "llama-3.1-8b"} <= {model["id"] for model in listed}
    state = up.state()
    assert [(one.service, len(one.replicas)) for one in state.services] == [
        ("llama-70b", 2),
        ("llama-8b", 1),
    ]
    before = up.pids()
    assert sorted(before) == [
        "llama-70b-replica-0",
        "llama-70b-replica-1",
        "llama-8b-replica-0",
        "router",
    ]
    more = text.replace("    replicas: 1\n", "    replicas: 2\n")
    up.file.write_text(
        more.replace(
            "- serviceRef: {name: llama-8b}", "- name: tiny\n      serviceRef: {name: llama-8b}"
        )
    )
    up.until_reported("fleet.yaml applied")
    assert ask("tiny").status_code == 200
    after = up.pids()
    assert after.keys() - before.keys() == {"llama-8b-replica-1"}
    assert {name: after[name] for name in before} == before, "nothing else was restarted"
    assert up.stop(signal.SIGINT) == 0
    assert all(gone(pid) for pid in after.values())


def test_killed_processes_restart_and_requests_succeed(start: Callable[..., Up]) -> None:
    up = start()
    up.until_ready()
    before = up.pids()
    os.kill(before["replica-0"], signal.SIGKILL)
    assert up.ask().status_code == 200, "the other replica answers"
    up.until_reported("replica-0: ready again")
    assert up.pids()["replica-0"] != before["replica-0"]
    assert up.pids()["replica-1"] == before["replica-1"]
    up.until(lambda: all(replica.routable for replica in up.state().replicas))
    os.kill(before["router"], signal.SIGKILL)
    up.until_reported("router: ready again")
    assert up.ask().status_code == 200, "at the same address"
    assert up.stop() == 0


def test_the_number_of_routers_follows_the_file(start: Callable[..., Up]) -> None:
    up = start()
    up.until_ready()
    up.edit("scheduling:", "router: {replicas: 3}\n  scheduling:")
    up.until_reported("fleet.yaml applied")
    pids = up.pids()
    assert sorted(name for name in pids if name.startswith("router")) == [
        "router", "router-1", "router-2"
    ]  # fmt: skip
    urls = re.findall(r"router-\d: ready at (http://\S+) ", up.output)
    for url in urls:
        assert up.ask(url=url).status_code == 200
    os.kill(pids["router-1"], signal.SIGKILL)
    up.until_reported("router-1: ready again")
    assert [up.ask(url=url).status_code for url in urls] == [200, 200]
    (folder,) = (up.folder / ".evenkeel").glob("*.*")
    config = json.loads((folder / "router-2.json").read_bytes())
    assert [peer["name"] for peer in config["state"]["peers"]] == ["router", "router-1"]
    up.edit("{replicas: 3}", "{replicas: 1}")
    up.until_reported("fleet.yaml applied", 2)
    assert [name for name in up.pids() if name.startswith("router")] == ["router"]
    assert json.loads((folder / "router.json").read_bytes())["state"]["peers"] == []


async def test_edits_lose_no_request(start: Callable[..., Up]) -> None:
    up = start()
    await asyncio.to_thread(up.until_ready)
    statuses: list[int] = []
    async with asking(up, statuses):
        # More replicas, and other weights.
        first = up.pids()
        up.edit("replicas: 2", "replicas: 3")
        up.edit("weight: 4", "weight: 7")
        await asyncio.to_thread(up.until_reported, "fleet.yaml applied")
        assert up.state().tenants[0].weight == 7
        assert [replica.name for replica in up.state().replicas] == [
            "replica-0",
            "replica-1",
            "replica-2",
        ]
        assert {name: up.pids()[name] for name in first} == first, "the running replicas stay"
        # An invalid edit changes nothing, and its fault is reported.
        up.edit("replicas: 3", "replicas: three")
        await asyncio.to_thread(up.until_reported, "the file is invalid; the fleet stays as it was")
        assert (
            "fleet.yaml:6: document 1 (FairInferenceService sample) spec.engine.replicas: must be "
            "an integer, not 'three'" in up.output
        )
        assert len(up.state().replicas) == 3
        # Another policy: new replicas start first, then the old ones stop.
        up.edit("replicas: three", "replicas: 1")
        up.edit("replicaPolicy: DLPM", "replicaPolicy: VTC")
        await asyncio.to_thread(up.until_reported, "fleet.yaml applied", 2)
        assert [replica.name for replica in up.state().replicas] == ["replica-3"]
        assert sorted(up.pids()) == ["replica-3", "router"]
        assert up.pids()["router"] == first["router"]
        assert all(gone(first[name]) for name in ("replica-0", "replica-1"))
    assert set(statuses) == {200}
    assert await asyncio.to_thread(up.stop) == 0


class asking:
    """Requests one after another, streamed, for as long as the block lasts."""

    def __init__(self, up: Up, statuses: list[int]) -> None:
        self._up = up
        self._statuses = statuses
        self._done = asyncio.Event()

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._ask())

    async def __aexit__(self, *_: object) -> None:
        self._done.set()
        await self._task

    async def _ask(self) -> None:
        while not self._done.is_set():
            response = await asyncio.to_thread(self._up.ask, stream=True, max_tokens=300)
            complete = response.text.rstrip().endswith("data: [DONE]")
            self._statuses.append(response.status_code if complete else 0)


def test_an_edit_that_cannot_run_leaves_the_fleet_as_it_was(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    up = start()
    up.until_ready()
    before = up.pids()
    profile = tmp_path / "profile.json"
    os.mkfifo(profile)
    good = msgspec.json.encode(PROFILES["a10g-llama2-7b"])
    threading.Thread(target=write_to_readers, args=(profile, good, b"{}"), daemon=True).start()
    up.edit("--speed=20", f"--profile={profile}")
    up.until_reported("the edit was not applied; the fleet stays as it was")
    assert "argument --profile" in up.output, "the message of the replica"
    assert up.pids() == before
    assert up.ask().status_code == 200
    up.edit("name: sample", "name: other")
    up.edit(f"--profile={profile}", "--speed=20")
    up.until_reported("default/sample runs; stop it to run another service")
    assert up.stop() == 0


def test_zero_replicas_and_a_missing_file_are_reported(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    text = FILE.replace("replicas: 2", "replicas: 0")
    (tmp_path / "fleet.yaml").write_text(text)
    up = start()
    up.until_ready()
    assert (
        "no replica runs because spec.engine.replicas is 0; requests get 503 at once" in up.output
    )
    assert "requests wait" not in up.output, "the router does not let them wait"
    answer = up.ask()
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == (
        "The service is scaled to zero replicas, and requests do not start one."
    )
    (log,) = (tmp_path / ".evenkeel").glob("*/router.log")
    assert "the service has no replicas. Requests get 503 at once." in log.read_text()
    up.file.unlink()
    up.until_reported(
        "fleet.yaml cannot be read: No such file or directory; the fleet stays as it was"
    )
    up.file.write_text(text)
    up.until_reported("fleet.yaml can be read again")
    up.edit("replicas: 0", "replicas: 1")
    up.until_reported("fleet.yaml applied")
    assert up.ask().status_code == 200
    assert up.stop() == 0


def test_a_newer_edit_cancels_one_whose_replicas_are_not_ready(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    up = start()
    up.until_ready()
    before, text = up.pids(), up.file.read_text()
    profile = tmp_path / "profile.json"
    os.mkfifo(profile)  # only the check of the file gets a profile; replicas wait for theirs
    good = msgspec.json.encode(PROFILES["a10g-llama2-7b"])
    threading.Thread(target=profile.write_bytes, args=(good,), daemon=True).start()
    up.edit("replicas: 2, args: [--speed=20]", f"replicas: 50, args: [--profile={profile}]")
    up.until(lambda: len(started(up)) == len(before) + STARTS_AT_ONCE)
    up.file.write_text(text)
    up.until_reported("edit cancelled: the file changed again before the new replicas were ready")
    assert up.pids() == before
    new = started(up) - set(before.values())
    assert len(new) == STARTS_AT_ONCE, "a limited number starts at once, and each is reported"
    assert all(gone(pid) for pid in new)
    assert up.ask().status_code == 200
    up.edit("weight: 4", "weight: 5")
    up.until_reported("fleet.yaml applied")
    assert up.stop() == 0


def started(up: Up) -> set[int]:
    """The processes whose start was reported."""
    return {int(pid) for pid in re.findall(r": started \(process (\d+)\)", up.output)}


def test_more_processes_than_fit_are_refused_with_the_number_that_fits(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    up = start()
    up.until_ready()
    before = up.pids()
    up.edit("replicas: 2", "replicas: 2000000000")
    up.until_reported("the edit was not applied; the fleet stays as it was")
    assert re.search(
        r"spec\.engine\.replicas is 2000000000, and at most \d+ fit on this machine: 1999999998 new "
        r"replicas need 100 MiB of memory each",
        up.output,
    )
    assert up.pids() == before
    up.edit("replicas: 2000000000", "replicas: 2")
    up.edit("scheduling:", "router: {replicas: 2000000000}\n  scheduling:")
    up.until_reported("spec.router.replicas: 1999999999 new routers need 130 MiB of memory each")
    assert started(up) == set(before.values())
    assert up.stop() == 0
    again = start(log="again.log")
    assert again.process.wait(DEADLINE_S) == 1
    assert "error: spec.router.replicas: 2000000000 new routers" in again.output
    assert started(again) == set()


def write_to_readers(pipe: Path, first: bytes, then: bytes) -> None:
    """Give the first reader of a pipe one text and later readers another, like a file that changes in between."""
    later = pipe.with_suffix(".later")
    later.write_bytes(then)
    pipe.write_bytes(first)
    later.replace(pipe)


def test_a_second_signal_kills_the_fleet(start: Callable[..., Up]) -> None:
    up = start()
    up.until_ready()
    pids = up.pids()
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 9000,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Authorization": "Bearer sk-chat"}
    url = f"{up.url}/v1/chat/completions"
    with httpx.stream(
        "POST", url, json=body, headers=headers, timeout=DEADLINE_S, trust_env=False
    ) as response:
        events = response.iter_lines()
        next(events)  # a long answer is under way
        up.process.send_signal(signal.SIGINT)
        up.until_reported("the router finishes its requests first")
        next(events)
        assert up.stop(signal.SIGINT) == 130
    assert "killed" in up.output.splitlines()[-1]
    assert all(gone(pid) for pid in pids.values())


def test_a_starting_fleet_can_be_stopped(start: Callable[..., Up]) -> None:
    up = start()
    up.until(lambda: list((up.folder / ".evenkeel").glob("*/state.json")) and up.pids())
    pids = up.pids()
    assert up.stop() == 0
    assert all(gone(pid) for pid in pids.values())


def test_killing_evenkeel_up_ends_its_processes(start: Callable[..., Up]) -> None:
    up = start()
    up.until_ready()
    pids = up.pids()
    assert up.stop(signal.SIGKILL) == -signal.SIGKILL
    deadline_s = time.monotonic() + DEADLINE_S
    while not all(gone(pid) for pid in pids.values()):
        assert time.monotonic() < deadline_s, pids
        time.sleep(0.02)
    again = start()
    again.until_ready()
    assert "an earlier run was killed; none of its processes is left" in again.output
    assert again.stop() == 0


def test_leftover_processes_of_a_killed_run_are_ended(start: Callable[..., Up]) -> None:
    up = start()
    up.until_ready()
    left = up.pids()["replica-1"]
    os.kill(left, signal.SIGSTOP)  # so that it cannot end by itself
    up.stop(signal.SIGKILL)
    again = start()
    # Others of the killed run may still be ending by themselves; then they are named, too.
    killed = rf"an earlier run was killed and left .*replica-1 \(process {left}\).*; ending"
    again.until(lambda: re.search(killed, again.output))
    os.kill(left, signal.SIGCONT)
    again.until_ready()
    assert gone(left)
    assert again.stop() == 0


def test_a_second_run_of_a_service_is_refused(start: Callable[..., Up]) -> None:
    up = start()
    up.until_ready()
    port = httpx.URL(up.url).port
    pids = up.pids()
    same_service = start(log="same.log")
    same_port = start(f"--port={port}", "--state-dir=elsewhere", log="port.log")
    assert same_service.process.wait(DEADLINE_S) == 1
    assert "another `evenkeel up` uses " in same_service.output
    assert same_port.process.wait(DEADLINE_S) == 1
    assert f"error: port {port} on 127.0.0.1 is taken by" in same_port.output
    assert up.pids() == pids
    assert up.stop() == 0


def test_an_invalid_file_ends_with_status_two_and_every_fault(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    text = FILE.replace("replicas: 2", "replicas: two").replace("weight: 4", "weight: 0")
    (tmp_path / "fleet.yaml").write_text(text)
    up = start()
    assert up.process.wait(DEADLINE_S) == 2
    assert [line.split(": ", 2)[1:] for line in up.output.splitlines()] == [
        [
            "document 1 (FairInferenceService sample) spec.engine.replicas",
            "must be an integer, not 'two'",
        ],
        ["document 2 (InferenceTenant ads) spec.weight", "must be from 1 to 1000000, not 0"],
    ]


def test_the_quickstart_has_no_faults_and_no_fields_without_effect() -> None:
    assert load_manifest(QUICKSTART).warnings == ()
