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
from tests.clients.programs.check import LIMIT_S, Found, Place, Program
from tests.support.nginx import nginx
from tests.support.ports import free_ports

SHORT: Final = 20
LONG: Final = 20_000
"""Tokens of a stream that nobody reads to its end."""
PIECES: Final = 100
_CHAT: Final = "/v1/chat/completions"
_BUFFER: Final = 4096
"""Bytes of the smallest buffer in which nginx collects an answer (`proxy_buffer_size`)."""
_PATIENCE_S: Final = 60.0
_LOOKS: Final = 600
_MASTER: Final = "sk-of-litellm"


def _asked(key: str, max_tokens: int) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
    }
    return {"json": body, "headers": {"Authorization": f"Bearer {key}"}}


async def _streamed(client: httpx.AsyncClient, metrics: str, key: str) -> str:
    """A short stream to its end; and the beginning of a long one, whose pieces are smaller than buffers, until the client leaves."""
    short = await client.post(_CHAT, **_asked(key, SHORT))
    events = [json.loads(line[6:]) for line in short.text.splitlines() if line[:7] == "data: {"]
    assert short.text.rstrip().endswith("data: [DONE]"), short.text
    assert events[-1]["usage"]["completion_tokens"] == SHORT, events[-1]
    async with client.stream("POST", _CHAT, **_asked(key, LONG)) as answer:
        assert answer.status_code == 200, await answer.aread()
        arriving = answer.aiter_bytes()
        pieces = [await anext(arriving) for _ in range(PIECES)]
        running = await _in_flight(metrics)
    assert running == 1, running
    usual = round(median(map(len, pieces)))
    assert usual < _BUFFER / 2, usual
    for _ in range(_LOOKS):
        if not await _in_flight(metrics):
            return f"pieces of {usual} bytes"
        await asyncio.sleep(0.1)
    raise AssertionError("the request of a client that left goes on")


async def _in_flight(metrics: str) -> int:
    """Sequences of all tenants at the router."""
    async with httpx.AsyncClient() as client:
        page = (await client.get(metrics)).text
    series = re.findall(r"^evenkeel_router_requests_in_flight{\S* (\S+)$", page, re.MULTILINE)
    assert series, page
    return round(sum(map(float, series)))


def _nginx(place: Place) -> Iterator[Found]:
    async def run() -> str:
        address = place.fleet.url.removeprefix("http://")
        async with nginx(place.folder, [address]) as client:
            return await _streamed(client, place.fleet.metrics, place.key)

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
            return await _streamed(client, place.fleet.metrics, _MASTER)

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
        deadline = time.monotonic() + LIMIT_S
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
