"""The router as a process, replicas as processes: signals, kill -9, reloads, ports, logs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from evenkeel_contract.adminstate import RouterState, decode_state
from evenkeel_contract.routerconfig import ListenConfig, ReplicaConfig, RouterConfig
from evenkeel_contract.routerdocument import dump_router_config

from tests.support.nasty import EVENT, Asked, Behaviour, nasty
from tests.support.routers import KEY, MODEL, PATIENCE_S, config_for, sha256, tenancy, until

ROOT = Path(__file__).parents[2]
PACKAGES = ("fairshare", "contract", "kube", "simulator", "router")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / p) for p in PACKAGES)}
AUTH = {"Authorization": f"Bearer {KEY}"}


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of ours; killed at the end if it still runs."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments,
        env=ENVIRONMENT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        limit=16 * 1024 * 1024,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


@asynccontextmanager
async def simulator(*flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, ReplicaConfig]]:
    """A simulated replica as a process."""
    arguments = ["--model", MODEL, "--port", "0", "--reports-port", "0", *flags]
    async with process("evenkeel_simulator.server", *arguments) as started:
        assert started.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            where = json.loads(await started.stdout.readline())
        name = f"r-{started.pid}"
        yield started, ReplicaConfig(name=name, url=where["url"], reports=where["reports"])


class Running:
    """A router process and what it writes."""

    def __init__(self, started: asyncio.subprocess.Process, lines: list[dict[str, Any]]) -> None:
        self.process = started
        self.lines = lines
        self.ports: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['traffic']}"

    @property
    def probes(self) -> str:
        return f"http://127.0.0.1:{self.ports['probe']}"

    async def state(self, client: httpx.AsyncClient, **headers: str) -> RouterState:
        url = f"http://127.0.0.1:{self.ports['admin']}/v1/state"
        response = await client.get(url, headers=headers)
        return decode_state(response.raise_for_status().content)

    async def line(self, message: str) -> dict[str, Any]:
        """Wait for a log line."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for line in self.lines:
                    if line["message"].startswith(message):
                        return line
                await asyncio.sleep(0.01)

    async def routable(self, client: httpx.AsyncClient, want: int) -> None:
        """Wait until so many replicas are routable."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                state = await self.state(client)
                if sum(replica.routable for replica in state.replicas) == want:
                    return
                await asyncio.sleep(0.02)


@asynccontextmanager
async def router(config: RouterConfig, path: Path, *flags: str) -> AsyncIterator[Running]:
    """A router as a process."""
    await asyncio.to_thread(path.write_bytes, dump_router_config(config))
    async with process("evenkeel_router", "--config", str(path), *flags) as started:
        lines: list[dict[str, Any]] = []
        running = Running(started, lines)
        reading = asyncio.create_task(_collect(started, lines))
        try:
            running.ports = (await running.line("serving"))["ports"]
            yield running
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _collect(started: asyncio.subprocess.Process, lines: list[dict[str, Any]]) -> None:
    assert started.stderr is not None
    async for line in started.stderr:
        lines.append(json.loads(line))  # every line is JSON, or this fails and the wait with it


@asynccontextmanager
async def behind(*behaviours: Behaviour, path: Path, **changes: Any) -> AsyncIterator[Running]:
    """A router process in front of misbehaving replicas."""
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(nasty(behaviour)) for behaviour in behaviours]
        named = [replica.config(f"r{i}") for i, replica in enumerate(replicas)]
        running = await stack.enter_async_context(router(config_for(*named, **changes), path))
        async with httpx.AsyncClient() as client:
            await running.routable(client, len(replicas))
        yield running


async def stream_of(client: httpx.AsyncClient, url: str, **changes: Any) -> bytes:
    """A whole streamed completion: status 200, whatever the events say."""
    body = {"model": MODEL, "prompt": "x", "stream": True} | changes
    response = await client.post(f"{url}/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.content


async def test_kill_9_of_a_replica_under_load_loses_only_streams_that_had_begun(
    tmp_path: Path,
) -> None:
    """What has no first byte finishes elsewhere; every other stream ends with one error event."""
    flags = ("--profile", "a100-llama3.1-8b", "--speed", "2")
    begun: set[int] = set()
    bodies = [b""] * 40

    async def read(number: int) -> None:
        body = {"model": MODEL, "prompt": f"{number} " * 400, "max_tokens": 300, "stream": True}
        async with client.stream("POST", f"{running.url}/v1/completions", json=body) as response:
            assert response.status_code == 200
            async for chunk in response.aiter_bytes():
                begun.add(number)
                bodies[number] += chunk

    async with (
        simulator(*flags) as (victim, first),
        simulator(*flags) as (_, second),
        router(config_for(first, second), tmp_path / "router.json") as running,
        httpx.AsyncClient(timeout=PATIENCE_S, limits=httpx.Limits(), headers=AUTH) as client,
    ):
        await running.routable(client, 2)
        load = [asyncio.create_task(read(number)) for number in range(40)]
        async with asyncio.timeout(PATIENCE_S):
            # until at least three of the victim's have begun
            while len(begun) < 3 + _requests_of(await running.state(client), second.name):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        victim.kill()
        await asyncio.gather(*load)
        whole = [body for body in bodies if body.endswith(b"data: [DONE]\n\n")]
        broken = [body for body in bodies if body not in whole]
        for body in broken:
            assert body.count(b'data: {"error"') == 1
            assert json.loads(body.split(b"\n\n")[-2][6:])["error"]["code"] == "replica_failed"
        assert len(whole) + len(broken) == 40
        assert len(broken) >= 3
        assert len(whole) >= 10
        await running.routable(client, 1)
        after = await asyncio.gather(
            *(stream_of(client, running.url, prompt=str(n), max_tokens=2) for n in range(10))
        )
        assert all(body.endswith(b"data: [DONE]\n\n") for body in after)
        state = await running.state(client)
        assert state.in_flight == state.waiting == 0
        assert sum(replica.in_flight for replica in state.replicas) == 0
        (chat,) = (c for tenant in state.tenants for c in tenant.clients if c.requests)
        assert chat.errors == len(broken)


def _requests_of(state: RouterState, name: str) -> int:
    """More than all, until the replica has its part of the 40."""
    (requests,) = (one.requests for one in state.replicas if one.name == name)
    return requests if requests >= 10 else 40


async def test_a_replica_that_comes_back_is_used_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        victim, first = await stack.enter_async_context(simulator())
        running = await stack.enter_async_context(router(config_for(first), tmp_path / "r.json"))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=PATIENCE_S))
        await running.routable(client, 1)
        before = (await running.state(client)).replicas[0]
        victim.kill()
        await victim.wait()
        waiting = asyncio.create_task(stream_of(client, running.url, max_tokens=2))
        port = first.url.rpartition(":")[2]
        reports = (first.reports or "").rpartition(":")[2]
        flags = ("--port", port, "--reports-port", reports)
        await stack.enter_async_context(simulator(*flags))
        assert (await waiting).endswith(b"data: [DONE]\n\n")
        async with asyncio.timeout(PATIENCE_S):
            while True:
                after = (await running.state(client)).replicas[0]
                if after.incarnation not in ("", before.incarnation):
                    break
                await asyncio.sleep(0.05)


async def test_a_router_that_ends_serves_each_connection_once_more(
    tmp_path: Path,
) -> None:
    """Clients that keep connections, and proxies that are late, do not know that it leaves (P4)."""
    go_on = asyncio.Event()

    async def answers(asked: Asked) -> None:
        if b'"stream"' not in asked.body:
            await asked.answer()
            return
        await asked.begin_stream(EVENT)
        await go_on.wait()
        await asked.chunk(b"data: [DONE]\n\n")
        await asked.send(b"0\r\n\r\n")

    body = {"model": MODEL, "prompt": "x"}
    async with (
        behind(answers, path=tmp_path / "router.json") as running,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
        httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as kept,
        httpx.AsyncClient(base_url=running.url, timeout=PATIENCE_S) as new,
    ):
        first = await kept.post("/v1/completions", json=body)
        assert "connection" not in first.headers
        url, stream = f"{running.url}/v1/completions", body | {"stream": True}
        async with client.stream("POST", url, json=stream) as response:
            pieces = response.aiter_bytes()
            assert await anext(pieces) == EVENT
            assert (await client.get(f"{running.probes}/readyz")).status_code == 200
            running.process.send_signal(signal.SIGTERM)
            await running.line("draining")
            assert (await client.get(f"{running.probes}/readyz")).status_code == 503
            assert (await client.get(f"{running.probes}/livez")).status_code == 200
            for one in (kept, new):
                served = await one.post("/v1/completions", json=body)
                assert (served.status_code, served.headers["connection"]) == (200, "close")
            go_on.set()
            assert b"".join([piece async for piece in pieces]) == b"data: [DONE]\n\n"
        async with asyncio.timeout(PATIENCE_S):
            assert await running.process.wait() == 0


@pytest.mark.slow
async def test_a_long_drain_closes_kept_connections_and_refuses_late_ones(tmp_path: Path) -> None:
    """In its second half: a request that came then could be cut."""
    go_on = asyncio.Event()

    async def waits(asked: Asked) -> None:
        await asked.begin_stream(EVENT)
        await go_on.wait()
        await asked.chunk(b"data: [DONE]\n\n")
        await asked.send(b"0\r\n\r\n")

    async with (
        behind(waits, path=tmp_path / "router.json", drain_timeout_s=40.0) as running,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        body = {"model": MODEL, "prompt": "x"}
        url, stream = f"{running.url}/v1/completions", body | {"stream": True}
        reader, writer = await asyncio.open_connection("127.0.0.1", running.ports["traffic"])
        async with client.stream("POST", url, json=stream, timeout=None) as response:
            pieces = response.aiter_bytes()
            assert await anext(pieces) == EVENT
            running.process.send_signal(signal.SIGTERM)
            assert await reader.read() == b"", "the half of the time is over"
            refused = await client.post(url, json=body)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            assert refused.headers["connection"] == "close"
            go_on.set()
            assert b"".join([piece async for piece in pieces]) == b"data: [DONE]\n\n"
        writer.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await running.process.wait() == 0


async def test_what_runs_longer_than_the_drain_ends_with_an_error(tmp_path: Path) -> None:
    async def begins(asked: Asked) -> None:
        if b'"stream"' in asked.body:
            await asked.begin_stream(EVENT)
        await asked.hang()

    async with (
        behind(begins, path=tmp_path / "router.json", drain_timeout_s=0.2) as running,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        stream = asyncio.create_task(stream_of(client, running.url))
        whole = asyncio.create_task(
            client.post(f"{running.url}/v1/completions", json={"model": MODEL, "prompt": "x"})
        )
        async with asyncio.timeout(PATIENCE_S):
            while (await running.state(client)).replicas[0].requests < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.process.send_signal(signal.SIGTERM)
        event, error, _ = (await stream).split(b"\n\n")
        assert event + b"\n\n" == EVENT
        assert json.loads(error[6:])["error"]["code"] == "draining"
        assert (await whole).status_code == 503
        assert (await whole).json()["error"]["code"] == "draining"
        async with asyncio.timeout(PATIENCE_S):
            assert await running.process.wait() == 0


async def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    async with (
        behind(Asked.hang, path=tmp_path / "router.json", drain_timeout_s=3600.0) as running,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        url = f"{running.url}/v1/completions"
        asking = asyncio.create_task(client.post(url, json={"model": MODEL, "prompt": "x"}))
        async with asyncio.timeout(PATIENCE_S):
            while not (await running.state(client)).in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        running.process.send_signal(signal.SIGTERM)
        await running.line("draining")
        running.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE_S):
            assert await running.process.wait() == 0
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_changed_configuration_is_applied_and_a_faulty_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    async with (
        nasty(Asked.answer) as first,
        nasty(Asked.answer) as second,
        router(config_for(first.config("r0")), path) as running,
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
    ):
        await running.routable(client, 1)
        url, body = f"{running.url}/v1/completions", {"model": MODEL, "prompt": "x"}
        assert (await client.post(url, json=body)).status_code == 200
        path.write_bytes(b'{"namespace": "ns", "service": "svc", "model": "", "replica": []}')
        line = await running.line("invalid configuration")
        assert "model" in line["message"]
        faults = (await running.state(client)).config_faults
        assert any("replica" in fault for fault in faults)
        assert (await client.post(url, json=body)).status_code == 200
        changed = replace(
            config_for(second.config("r1"), second.config("r2")),
            model="other",
            tenancy=tenancy(tenants=()),
            admin_token_sha256=sha256("admin"),
            listen=replace(config_for().listen, traffic_port=1),
        )
        path.write_bytes(dump_router_config(changed))
        await running.line("the configuration changed")
        assert (await running.line("a changed `listen`"))["level"] == "warning"
        assert (await client.post(url, json=body)).status_code == 404
        async with asyncio.timeout(PATIENCE_S):
            while not second.asked:
                await client.post(url, json=body | {"model": "other"})
        assert len(first.asked) == 2
        state = await running.state(client, Authorization="Bearer admin")
        assert [replica.name for replica in state.replicas] == ["r1", "r2"]
        assert state.config_faults == ()
        admin = f"http://127.0.0.1:{running.ports['admin']}/v1/state"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic admin"}):
            assert (await client.get(admin, headers=headers)).status_code == 401


async def test_a_faulty_configuration_names_every_fault_and_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    path.write_text('{"namespace": 7, "model": "m", "limits": {"maxAttempts": 0}}')
    async with process("evenkeel_router", "--config", str(path)) as started:
        _, errors = await started.communicate()
        assert started.returncode == 2
    for want in (b"namespace", b"service", b"limits.maxAttempts"):
        assert want in errors
    assert b"Traceback" not in errors
    async with process("evenkeel_router", "--config", str(tmp_path / "none")) as started:
        _, errors = await started.communicate()
        assert (started.returncode, b"cannot be read" in errors) == (2, True)


async def test_a_taken_port_is_a_sentence_not_a_traceback(tmp_path: Path) -> None:
    async with nasty(Asked.answer) as replica:
        path = tmp_path / "router.json"
        taken = replace(config_for().listen, traffic_port=replica.port)
        path.write_bytes(dump_router_config(replace(config_for(), listen=taken)))
        async with process("evenkeel_router", "--config", str(path)) as started:
            _, errors = await started.communicate()
            assert started.returncode == 1
        assert b"cannot serve" in errors
        assert b"Traceback" not in errors


async def test_requests_are_logged_in_one_line_without_keys_or_prompts(tmp_path: Path) -> None:
    async with (
        behind(Asked.answer, path=tmp_path / "router.json") as running,
        httpx.AsyncClient(timeout=PATIENCE_S, headers=AUTH) as client,
    ):
        body = {"model": MODEL, "prompt": "a secret prompt"}
        url = f"{running.url}/v1/completions"
        await client.post(url, json=body, headers={"x-request-id": "id-1"})
        await client.post(f"{running.url}/a%20secret", json=body, headers={"x-request-id": "id-2"})
        line = await running.line("request")
        assert (line["request_id"], line["client"], line["status"]) == ("id-1", "ns/acme/chat", 200)
        assert (line["replica"], line["input_tokens"], line["attempts"]) == ("r0", 5, 1)
        await until(lambda: "id-2" in json.dumps(running.lines), "the second request's line")
        written = json.dumps(running.lines)
        assert KEY not in written
        assert "secret" not in written


async def test_an_admin_port_without_a_token_is_refused_beyond_loopback(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    open_to_all = config_for(listen=ListenConfig(host="0.0.0.0", traffic_port=0))
    await asyncio.to_thread(path.write_bytes, dump_router_config(open_to_all))
    async with process("evenkeel_router", "--config", str(path)) as started:
        _, written = await started.communicate()
        assert started.returncode == 2
        assert "adminTokenSha256: is required" in written.decode()
        assert "set this field to its SHA-256" in written.decode()


async def test_an_admin_port_without_a_token_is_logged_on_loopback(tmp_path: Path) -> None:
    async with router(config_for(), tmp_path / "open.json") as running:
        line = await running.line("the admin port needs no credentials")
        assert line["level"] == "warning"
        assert "set adminTokenSha256" in line["message"]
    protected = config_for(admin_token_sha256=sha256("admin"))
    async with router(protected, tmp_path / "protected.json") as running:
        assert not any("credentials" in line["message"] for line in running.lines)
