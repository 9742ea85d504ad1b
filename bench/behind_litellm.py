"""A small team's time to first token behind LiteLLM's proxy, alone and while another team floods (docs/how-to/behind-litellm.md).

    python -m bench.behind_litellm --litellm VENV [--vllm FOLDER] [--seconds 60] [--flood 24] [--setups evenkeel direct]

`VENV` has LiteLLM's proxy (`pip install 'litellm[proxy]'`). The files are those of examples/litellm. The engine is simulated: it
serves first come, first served, without the plug-in, as a stock engine does. `--vllm` takes the folder of `make vllm`, and then
the engine is a real vLLM on the CPU. With `direct`, LiteLLM sends to the engine itself. The small team sends the same requests at the
same times alone and during the flood.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import httpx
import yaml
from evenkeel_simulator.engine.config import EngineConfig
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.server.app import running_server
from evenkeel_simulator.server.settings import Settings

from bench.router.run import free_ports
from bench.vllm_engine import running_vllm

EXAMPLES: Final = Path(__file__).resolve().parents[1] / "examples" / "litellm"
MODEL: Final = "llama"
SMALL, BIG = "sk-research", "sk-batch"
START_S: Final = 400.0
BATCH: Final = 32
ROOM: Final = ("--kv-cache-memory-bytes=268435456", f"--max-num-seqs={BATCH}")
"""Tokens of a vLLM's cache: a whole batch of such prompts fits, as in a simulated engine."""
EVENKEEL, DIRECT = "evenkeel", "direct"


@dataclass(frozen=True, slots=True)
class Load:
    """What both teams send."""

    seconds: float
    flood: int
    """Requests that the big team keeps in flight."""
    every_s: float
    """Mean time between two requests of the small team."""
    seed: int


def started(
    command: Sequence[str], log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """A process that writes to `log`."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )  # fmt: skip


def end_of(log: Path) -> str:
    """The last lines of a log."""
    return log.read_text()[-3000:]


@asynccontextmanager
async def child(*command: str, log: Path, ready: str, **environment: str) -> AsyncIterator[None]:
    """A process that answers at `ready`, ended at the end."""
    process = started(command, log, environment)
    try:
        await answering(ready, process, log)
        yield
        assert process.poll() is None, end_of(log)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


async def answering(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + START_S
    async with httpx.AsyncClient() as client:
        while True:
            try:
                (await client.get(url)).raise_for_status()
                return
            except httpx.HTTPError as error:
                assert time.monotonic() < deadline and process.poll() is None, (
                    error,
                    end_of(log),
                )
                await asyncio.sleep(0.3)


@asynccontextmanager
async def proxy_in_front(
    setup: str, litellm: Path, folder: Path, engine: str
) -> AsyncIterator[str]:
    """The address of LiteLLM's proxy, which sends to the router or to the engine. `engine`: its URL; empty: a simulated one."""
    settings = Settings(
        model=MODEL,
        port=0,
        reports_port=None,
        replica_policy="FCFS",
        engine=EngineConfig(max_running=BATCH),
        profile=PROFILES["a10g-llama3.2-3b"],
    )
    traffic, probe, admin, port = free_ports(4)
    async with AsyncExitStack() as stack:
        target = engine or (await stack.enter_async_context(running_server(settings))).url
        if setup == EVENKEEL:
            route = yaml.safe_load((EXAMPLES / "route.yaml").read_text())
            route["replicas"] = [{"url": target}]
            file, log, target = (
                folder / "route.yaml",
                folder / "route.log",
                f"http://127.0.0.1:{traffic}",
            )
            file.write_text(yaml.safe_dump(route))
            words = (
                "route",
                str(file),
                f"--port={traffic}",
                f"--probe-port={probe}",
                f"--admin-port={admin}",
            )
            start = "from evenkeel_cli.main import main; main()"
            ready = f"http://127.0.0.1:{probe}/readyz"
            await stack.enter_async_context(
                child(sys.executable, "-c", start, *words, log=log, ready=ready)
            )
        config = yaml.safe_load((EXAMPLES / "litellm.yaml").read_text())
        config["model_list"][0]["litellm_params"]["api_base"] = f"{target}/v1"
        (folder / "litellm.yaml").write_text(yaml.safe_dump(config))
        (folder / "teams.py").write_text((EXAMPLES / "teams.py").read_text())
        command = (str(litellm / "bin" / "litellm"), "--config", str(folder / "litellm.yaml"))
        log = folder / "litellm.log"
        here = ("--host", "127.0.0.1", "--port", str(port))
        local = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(24)}",
            "NO_PROXY": "127.0.0.1",
        }
        ready = f"http://127.0.0.1:{port}/health/liveliness"
        await stack.enter_async_context(child(*command, *here, log=log, ready=ready, **local))
        yield f"http://127.0.0.1:{port}"


async def first_token_s(client: httpx.AsyncClient, number: int, rng: Random) -> float:
    """Seconds until the first token of one request of the small team."""
    prompt = f"{number} " + " ".join(rng.choices(("sea", "ship", "keel"), k=1000))
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 16,
        "messages": [{"role": "user", "content": prompt}],
    }
    began = time.perf_counter()
    found = 0.0
    async with client.stream(
        "POST", "/v1/chat/completions", json=body, headers=_key(SMALL)
    ) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not found and '"content":"' in line.replace(" ", ""):
                found = time.perf_counter() - began
    assert found
    return found


def _key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def small_team(url: str, load: Load) -> list[float]:
    """Times to first token of the team, in seconds."""
    rng = Random(load.seed)
    async with httpx.AsyncClient(
        base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)
    ) as client:
        await first_token_s(client, -1, rng)
        tasks, until = [], time.monotonic() + load.seconds
        while time.monotonic() < until:
            tasks.append(asyncio.create_task(first_token_s(client, len(tasks), rng)))
            await asyncio.sleep(rng.expovariate(1 / load.every_s))
        return await asyncio.gather(*tasks)


async def big_team(url: str, load: Load, ended: list[float]) -> None:
    """Keep requests in flight until cancelled; the times at which they end."""
    async with httpx.AsyncClient(
        base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)
    ) as client:

        async def one(worker: int) -> None:
            rng = Random(1000 + worker)
            number = 0
            while True:
                number += 1
                prompt = f"{worker} {number} " + " ".join(
                    rng.choices(("wind", "wave", "tide"), k=1000)
                )
                body = {
                    "model": MODEL,
                    "max_tokens": 200,
                    "messages": [{"role": "user", "content": prompt}],
                }
                answer = await client.post("/v1/chat/completions", json=body, headers=_key(BIG))
                if answer.status_code == 200:
                    ended.append(time.monotonic())
                else:
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(one(worker) for worker in range(load.flood)))


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measured(setup: str, litellm: Path, load: Load, engine: str) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        async with proxy_in_front(setup, litellm, Path(folder), engine) as url:
            alone = await small_team(url, load)
            ended: list[float] = []
            flood = asyncio.create_task(big_team(url, load, ended))
            await asyncio.sleep(10)
            began = time.monotonic()
            flooded = await small_team(url, load)
            flood.cancel()
    rate = sum(at > began for at in ended) / (time.monotonic() - began)
    cells = [f"{quantile(one, q):.2f}" for one in (alone, flooded) for q in (0.5, 0.99)]
    ratio = quantile(flooded, 0.99) / quantile(alone, 0.99)
    return " | ".join(
        ["", setup, str(len(alone)), *cells, f"{ratio:.2f}", f"{rate:.2f}", ""]
    ).strip()


async def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--litellm", type=Path, required=True)
    parser.add_argument("--vllm", type=Path, help="folder of `make vllm`")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--flood", type=int, default=24)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--setups", nargs="+", default=[EVENKEEL, DIRECT], choices=[EVENKEEL, DIRECT]
    )
    given = parser.parse_args()
    load = Load(given.seconds, given.flood, given.every, given.seed)
    print(
        "| | requests | alone p50 | alone p99 | flood p50 | flood p99 | p99 ratio | flood answers/s |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    with ExitStack() as stack:
        engine = ""
        if given.vllm is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            engine = stack.enter_context(
                running_vllm(
                    environment=given.vllm, served_name=MODEL, flags=ROOM, log=folder / "log"
                )
            )
        for setup in given.setups:
            print(await measured(setup, given.litellm, load, engine), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
