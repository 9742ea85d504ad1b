"""`evenkeel replay` and `evenkeel top` against a real router with simulated replicas."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from evenkeel_cli.manifest import parse_manifest
from evenkeel_cli.up.fleet import LocalFleet, running_fleet
from evenkeel_contract.adminstate import STATE_PATH, decode_state
from evenkeel_contract.routerconfig import ListenConfig

from tests.support.ports import consecutive_ports

DEADLINE_S = 60.0
FILE = b"""\
apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {name: sample}
spec:
  model: {source: hf://org/model, servedName: m}
  engine: {runtime: Simulator, replicas: 2, args: [--speed=20, --profile=a10g-llama3.2-3b]}
  tenancy: {trustedProxies: [127.0.0.1]}
---
apiVersion: evenkeel.dev/v1alpha1
kind: InferenceTenant
metadata: {name: ads}
spec:
  clients: [{name: chat}, {name: batch}]
  apiKeys:
    - {name: k, client: chat, secretRef: {name: keys, key: chat}}
    - {name: l, client: batch, secretRef: {name: keys, key: batch}}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {chat: sk-chat, batch: sk-batch}
"""
TRACE = [
    {"timestamp": 20 * i, "input_length": 600, "output_length": 5, "session": i % 2}
    | {"hash_ids": [i % 2, 100 + i]}
    for i in range(20)
]

pytestmark = pytest.mark.usefixtures("source_path")


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[LocalFleet]:
    first = consecutive_ports(3)
    listen = ListenConfig(traffic_port=first, probe_port=first + 1, admin_port=first + 2)
    manifest = parse_manifest(FILE, "f.yaml")
    async with running_fleet(
        manifest, listen=listen, state_root=folder, report=lambda _: None
    ) as running:
        yield running


async def evenkeel(*arguments: object, folder: Path) -> tuple[int, str, str]:
    """(exit status, output, errors) of the command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from evenkeel_cli.main import main; main()",
        *map(str, arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def test_a_trace_is_replayed_and_shown_by_top(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, TRACE)))
    (tmp_path / "f.yaml").write_bytes(FILE)
    async with fleet(tmp_path) as running:
        router = running.routers[0]
        status, output, errors = await evenkeel(
            *("replay", "--trace", "trace.jsonl", "--clients", "hash:2", "--speed", 4),
            *("--url", router.url, "--api-keys", "f.yaml", "--out", "out/report.json"),
            folder=tmp_path,
        )
        assert status == 0, errors
        assert "20 of 20 requests" in output
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert report["errors"] == {}
        clients = report["summary"]["clients"]
        assert sum(client["finished"] for client in clients.values()) == 20
        assert all(client["hit_rate"] > 0.5 for client in clients.values()), "prefixes are shared"
        # The number of tokens of the trace, and a few of the chat template.
        requested = sum(client["requested"] for client in clients.values())
        assert 20 * (600 + 2 * 5) <= requested <= 20 * (620 + 2 * 5)

        status, output, errors = await evenkeel(
            "top", "--once", "--json", "--interval=0.1", "--url", router.admin_url, folder=tmp_path
        )
        assert status == 0, errors
        view = json.loads(output)
        assert sum(client["requests"] for client in view["clients"]) >= 20
        assert report["summary"]["idle_s"] == view["fleet"]["idle_total_s"]
        assert [replica["state"] for replica in view["replicas"]] == ["ready", "ready"]
        status, output, errors = await evenkeel(
            "top", "--once", "--interval=0.1", "--url", router.admin_url, folder=tmp_path
        )
        assert status == 0, errors
        assert "ads/chat" in output
        assert "replica-1" in output

        # Without keys no client is identified: failures are counted and explained.
        status, output, errors = await evenkeel(
            *("replay", "--trace", "trace.jsonl", "--clients", "hash:2", "--limit", 3),
            *("--url", router.url, "--model", "m", "--max-concurrency", 1),
            folder=tmp_path,
        )
        assert "3 failed with 401: " in output
        assert "identify the clients: use --api-keys FILE" in output
        status, output, errors = await evenkeel(
            *("replay", "--trace", "trace.jsonl", "--clients", "hash:2", "--url", router.url),
            folder=tmp_path,
        )
        assert status == 1
        assert "status 401" in errors
        assert "identify the clients: use --api-keys FILE" in errors
        # For another port of a router the message has the right one; for another server, how to find it.
        for url in (router.url, f"http://127.0.0.1:{running.listen.probe_port}"):
            status, output, errors = await evenkeel("top", "--once", "--url", url, folder=tmp_path)
            assert status == 1
            assert f"the admin port is at another address: --url {router.admin_url}" in errors
        replica = next(iter(running.replicas.values())).url
        status, output, errors = await evenkeel("top", "--once", "--url", replica, folder=tmp_path)
        assert status == 1
        assert "answered with status 404; " in errors
        # A trusted header identifies a client that no tenant lists.
        status, output, errors = await evenkeel(
            *("replay", "--trace", "trace.jsonl", "--clients", "hash:1", "--limit", 2),
            *(
                "--url",
                router.url,
                "--model",
                "m",
                "--client-header",
                "x-evenkeel-client: ads/{client}",
            ),
            folder=tmp_path,
        )
        assert "2 of 2 requests" in output, output + errors
        # A header with an unknown tenant is refused.
        status, output, errors = await evenkeel(
            *("replay", "--trace", "trace.jsonl", "--clients", "hash:1", "--limit", 1),
            *("--url", router.url, "--model", "m", "--client-header", "x-evenkeel-client"),
            folder=tmp_path,
        )
        assert "1 failed with 403: Tenant 'client-0' does not exist" in output


async def test_an_interrupted_replay_reports_its_results(tmp_path: Path) -> None:
    long = [{**TRACE[0], "timestamp": 0}, {**TRACE[1], "timestamp": 10_000_000}]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, long)))
    async with fleet(tmp_path) as running:
        router = running.routers[0]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            # In a background job SIGINT is ignored, and children inherit that.
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from evenkeel_cli.main import main; main()",
            *("replay", "--trace", "trace.jsonl", "--clients", "hash:1", "--url", router.url),
            *(
                "--client-header",
                "x-evenkeel-client: ads/{client}",
                "--model",
                "m",
                "--out",
                "report.json",
            ),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
        )
        async with asyncio.timeout(DEADLINE_S):
            while not await _served(running):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
            process.send_signal(signal.SIGINT)
            output, _ = await process.communicate()
    assert process.returncode == 130
    assert b"1 of 1 requests" in output
    assert json.loads((tmp_path / "report.json").read_text())["interrupted"] is True


async def _served(running: LocalFleet) -> bool:
    async with httpx.AsyncClient(trust_env=False) as client:
        state = decode_state((await client.get(running.routers[0].admin_url + STATE_PATH)).content)
    return any(replica.output_tokens for replica in state.replicas)


@pytest.mark.parametrize(
    ("arguments", "status", "want"),
    [
        (["replay", "--trace", "none.csv"], 2, "none.csv: cannot be read"),
        (["replay", "--trace", "t.csv", "--speed", "0"], 2, "--speed is 0.0, must be above 0"),
        (["replay", "--trace", "t.csv", "--clients", "8"], 2, "must be hash:N with N at least 1"),
        (["replay", "--trace", "t.csv", "--url", "nowhere"], 2, "'nowhere' is not a URL"),
        (
            ["replay", "--trace", "t.csv", "--api-keys", "k", "--client-header", "h"],
            2,
            "use --api-keys or --client-header, not both",
        ),
        (
            ["replay", "--trace", "t.csv", "--url", "http://127.0.0.1:9"],
            1,
            "http://127.0.0.1:9/v1 cannot be reached: cannot connect to 127.0.0.1:9: ",
        ),
        (
            ["replay", "--trace", "t.csv", "--client-header", "a b: c"],
            2,
            "'a b' is not the name of a header",
        ),
        (["replay", "--trace", "t.csv", "--out", "t.csv/o.json"], 1, "--out t.csv/o.json: "),
        (["demo", "--out", "t.csv/o"], 1, "t.csv/o: Not a directory"),
        (["up", "f.yaml", "--port", "3000", "--probe-port", "3000"], 1, "port 3000 is given twice"),
        (["top", "--once", "--url", "127.0.0.1:9"], 1, "does not answer"),
        (["top", "--once", "--url", "http://["], 1, "does not answer"),
        (
            ["top", "--once", "--url", "http://a:99999"],
            2,
            "is not an address like http://127.0.0.1:8082",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
async def test_invalid_input_is_reported_in_one_sentence(
    arguments: list[str], status: int, want: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("client,arrival_s,input_tokens,output_tokens\na,0,5,5\n")
    (tmp_path / "f.yaml").write_bytes(FILE)
    got, _, errors = await evenkeel(*arguments, folder=tmp_path)
    assert got == status
    assert want in " ".join(errors.split())
    assert "Traceback" not in errors
