"""Gateways of others in front of the router: nginx with its defaults, and LiteLLM's proxy."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, Final

import httpx
import yaml

from tests.clients.fleet import MODEL
from tests.clients.programs.agents import MOST, NONCE, TURNS, ClaudeCode
from tests.clients.programs.check import Found, Place, Program
from tests.support.nginx import nginx
from tests.support.ports import free_ports

_LONG: Final = "Tell me story 36059 about the sea, from its beginning to its end."
"""The simulated replica answers this one with at least 1443 tokens."""
_BUFFER: Final = 4096
"""Bytes of the smallest buffer in which nginx collects an answer (`proxy_buffer_size`)."""
_START_LIMIT_S: Final = 120.0
_PATIENCE_S: Final = 60.0
_LOOKS: Final = 600
_MASTER: Final = "sk-of-litellm"


async def _streamed(client: httpx.AsyncClient, metrics: str, key: str) -> str:
    """Events of a long stream. The first arrive while the replica still writes, and they come in smaller pieces than buffers."""
    body: dict[str, Any] = {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": _LONG}],
    }
    headers = {"Authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        arriving = answer.aiter_bytes()
        pieces = [await anext(arriving)]
        running = await _in_flight(metrics)
        pieces += [piece async for piece in arriving]
    assert running == 1, running
    usual = round(median(map(len, pieces)))
    assert usual < _BUFFER / 2, usual
    whole = b"".join(pieces)
    events = [json.loads(line[6:]) for line in whole.splitlines() if line[:7] == b"data: {"]
    usage = events[-1]["usage"]
    assert whole.rstrip().endswith(b"data: [DONE]") and usage["completion_tokens"] == 1000, usage
    return f"{len(events):,} events, in pieces of {usual} bytes"


async def _left(client: httpx.AsyncClient, metrics: str, key: str) -> None:
    """A client that leaves a stream: the router notices, and ends the replica's work."""
    body = {
        "model": MODEL,
        "stream": True,
        "max_tokens": 1400,
        "messages": [{"role": "user", "content": _LONG}],
    }
    headers = {"Authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        await anext(answer.aiter_bytes())
    for _ in range(_LOOKS):
        if not await _in_flight(metrics):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the request of a client that left goes on")


async def _in_flight(metrics: str) -> int:
    async with httpx.AsyncClient() as client:
        page = (await client.get(metrics)).text
    return round(
        float(re.findall(r"^evenkeel_router_requests_in_flight\S* (\S+)$", page, re.MULTILINE)[0])
    )


def _nginx(place: Place) -> Iterator[Found]:
    async def run() -> str:
        address = place.fleet.url.removeprefix("http://")
        async with nginx(place.folder, [address]) as client:
            figure = await _streamed(client, place.fleet.metrics, place.key)
            await _left(client, place.fleet.metrics, place.key)
            return figure

    yield Found(
        program=f"nginx {_version('nginx', '-v')}",
        check="a stream arrives event by event; a client leaves",
        passed=True,
        figure=asyncio.run(run()),
    )


def _litellm(place: Place) -> Iterator[Found]:
    name = f"LiteLLM's proxy {place.programs.version('litellm')}"

    async def run(url: str) -> str:
        async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S) as client:
            figure = await _streamed(client, place.fleet.metrics, _MASTER)
            await _left(client, place.fleet.metrics, _MASTER)
            return figure

    with _proxy(place) as url:
        yield Found(
            program=name,
            check="a stream arrives event by event; a client leaves",
            passed=True,
            figure=asyncio.run(run(url)),
        )
        claude = ClaudeCode(
            place.programs.native("claude-code-linux-*", NONCE, "claude"),
            replace(place.fleet, url=url),
            _MASTER,
            place.folder / "claude",
        )
        turns = claude.ten_turns()
        yield Found(
            program=name,
            check=f"Claude Code {NONCE} through it, turns 2 to {TURNS}: cached",
            passed=turns.share > MOST,
            figure=str(turns),
        )


@contextmanager
def _proxy(place: Place) -> Iterator[str]:
    """LiteLLM in front of the router; yields its address."""
    [port] = free_ports(1)
    model = {"model": f"openai/{MODEL}", "api_base": f"{place.fleet.url}/v1", "api_key": place.key}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": model}],
        "general_settings": {"master_key": _MASTER},
        "litellm_settings": {"telemetry": False},
    }
    file = place.folder / "litellm.yaml"
    file.write_text(yaml.safe_dump(config))
    log = place.folder / "litellm.log"
    words = ("--config", str(file), "--host", "127.0.0.1", "--port", str(port))
    with log.open("wb") as output:
        proxy = subprocess.Popen(
            [str(place.programs.python("litellm")), *words],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(place.folder),
                "NO_PROXY": "127.0.0.1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_LIMIT_S
        while True:
            try:
                httpx.get(f"{url}/health/liveliness").raise_for_status()
                break
            except httpx.HTTPError:
                assert proxy.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.5)
        yield url
    finally:
        proxy.terminate()
        proxy.wait(60)


def _version(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return re.findall(r"\d[\d.]*", done.stdout + done.stderr)[0]


PROGRAMS: Final = (
    Program("nginx", _nginx, needs="nginx"),
    Program("LiteLLM's proxy", _litellm),
)
