"""Agents with tool loops over `/v1/messages` and `/v1/responses`, beside a flood of chats.

They get the same share as a chat client, and wait as long for their first tokens.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from itertools import count
from statistics import median
from typing import Any

import httpx
import pytest
from evenkeel_contract.routerconfig import ApiKeyConfig, ClientConfig, TenantConfig
from evenkeel_simulator.engine.config import EngineConfig

from tests.support.routers import MODEL, fleet, sha256, simulated, tenancy

LOOPS = 6
"""Conversations of an agent at the same time: more than its share of the batch, so that it always waits."""
FLOOD = 40
SERVED = 150_000.0
"""Weighted tokens after which the shares are read."""
TTFT_FACTOR = 2.0
"""The most between the median TTFT of an agent and that of the chat client. The flood waits more than ten times as long."""
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TURNS = 3
QUESTION = "How warm will it be there on the first day of the week after the next one? " * 4
RESULT = "It will be 20 degrees. " * 10
_numbers = count()


def chat(turns: list[Any]) -> tuple[str, dict[str, Any]]:
    function = {"name": "weather", "parameters": PARAMETERS}
    return "/v1/chat/completions", {
        "messages": turns,
        "max_tokens": 60,
        "tools": [{"type": "function", "function": function}],
    }


def messages(turns: list[Any]) -> tuple[str, dict[str, Any]]:
    tool = {"name": "weather", "input_schema": PARAMETERS}
    return "/v1/messages", {"messages": turns, "max_tokens": 60, "tools": [tool]}


def responses(turns: list[Any]) -> tuple[str, dict[str, Any]]:
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    return "/v1/responses", {"input": turns, "max_output_tokens": 60, "tools": [tool]}


def joined_chat(events: list[Any]) -> Any:
    """The answer that a stream's events add up to, as a request without a stream gets it."""
    calls: list[Any] = []
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    for one in (call for delta in deltas for call in delta.get("tool_calls") or ()):
        if one["index"] == len(calls):
            calls.append({"id": one["id"], "type": "function", "function": {"arguments": ""}})
        call = calls[one["index"]]["function"]
        given = one["function"]
        call["name"] = given.get("name") or call["name"]
        call["arguments"] += given.get("arguments") or ""
    text = "".join(delta.get("content") or "" for delta in deltas)
    return {"choices": [{"message": {"role": "assistant", "content": text, "tool_calls": calls}}]}


def joined_messages(events: list[Any]) -> Any:
    blocks: list[Any] = []
    inputs: defaultdict[int, str] = defaultdict(str)
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta" and "text" in event["delta"]:
            blocks[event["index"]]["text"] += event["delta"]["text"]
        elif event["type"] == "content_block_delta":
            inputs[event["index"]] += event["delta"]["partial_json"]
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    return {"content": blocks}


def joined_responses(events: list[Any]) -> Any:
    return events[-1]["response"]


def answered_chat(made: Any) -> tuple[list[Any], list[Any]]:
    """What the next request repeats of an answer, and the results of its tool calls."""
    message = {name: value for name, value in made["choices"][0]["message"].items() if value}
    calls = message.get("tool_calls", ())
    results = [{"role": "tool", "tool_call_id": one["id"], "content": RESULT} for one in calls]
    return [message], results


def answered_messages(made: Any) -> tuple[list[Any], list[Any]]:
    results = [
        {"type": "tool_result", "tool_use_id": one["id"], "content": RESULT}
        for one in made["content"]
        if one["type"] == "tool_use"
    ]
    turn = {"role": "assistant", "content": made["content"]}
    return [turn], [{"role": "user", "content": results}] if results else []


def answered_responses(made: Any) -> tuple[list[Any], list[Any]]:
    results = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": RESULT}
        for one in made["output"]
        if one["type"] == "function_call"
    ]
    return made["output"], results


def is_output(event: Any) -> bool:
    """Whether a stream's event has output: text, or a part of a tool call."""
    if "choices" in event:
        deltas = [choice["delta"] for choice in event["choices"]]
        return any(delta.get("content") or delta.get("tool_calls") for delta in deltas)
    return bool(event["type"] == "content_block_delta" or event["type"].endswith(".delta"))


AGENTS = {
    "chat": (chat, joined_chat, answered_chat),
    "messages": (messages, joined_messages, answered_messages),
    "responses": (responses, joined_responses, answered_responses),
}


def _tenants() -> Iterator[TenantConfig]:
    for name in (*AGENTS, "flood"):
        key = ApiKeyConfig(name="k", client="app", sha256=sha256(f"sk-{name}"))
        clients = (ClientConfig(name="app"),)
        yield TenantConfig(namespace="ns", name=name, clients=clients, api_keys=(key,))


class Traffic:
    """Requests of the agents and of the flood, and what became of them."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.ttft_s: defaultdict[str, list[float]] = defaultdict(list)
        self.turns: Counter[str] = Counter()

    def start(self) -> list[asyncio.Task[None]]:
        agents = [asyncio.create_task(self.agent(name)) for name in AGENTS for _ in range(LOOPS)]
        return agents + [asyncio.create_task(self.flood()) for _ in range(FLOOD)]

    async def agent(self, name: str) -> None:
        while True:
            turns: list[Any] = []
            for _ in range(TURNS):
                turns.append({"role": "user", "content": f"{next(_numbers)}: {QUESTION}"})
                await self._turn(name, turns)

    async def _turn(self, name: str, turns: list[Any]) -> None:
        """A question, tool calls and their results until there is an answer."""
        make, joined, answered = AGENTS[name]
        results = True
        while results:
            events = await self._send(name, *make(turns))
            said, results = answered(joined(events))
            turns += said + results
        self.turns[name] += 1

    async def flood(self) -> None:
        while True:
            turn = {"role": "user", "content": f"{next(_numbers)}: {QUESTION * 4}"}
            await self._send("flood", *chat([turn]))

    async def _send(self, name: str, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream."""
        began_s = time.monotonic()
        first_s = None
        key = {"authorization": f"Bearer sk-{name}"}
        asked = body | {"model": MODEL, "stream": True}
        found = []
        async with self.client.stream("POST", path, json=asked, headers=key) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for event in events_of(answer):
                found.append(event)
                if first_s is None and is_output(event):
                    first_s = time.monotonic()
        assert first_s is not None, found
        self.ttft_s[name].append(first_s - began_s)
        return found


async def events_of(answer: httpx.Response) -> AsyncIterator[Any]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_an_agent_gets_the_share_and_ttft_of_a_chat_client_over_any_api() -> None:
    small = simulated(speed=4.0, engine=EngineConfig(max_running=4))
    async with (
        fleet(2, settings=small, tenancy=tenancy(tenants=tuple(_tenants()))) as (router, _),
        httpx.AsyncClient(
            base_url=router.url, timeout=300, limits=httpx.Limits(max_connections=200)
        ) as client,
    ):
        traffic = Traffic(client)
        work = traffic.start()
        figures = router.rooms.service_ledger.fairness
        try:
            while sum(one.service for one in figures.now.clients.values()) < SERVED:
                failed = [task for task in work if task.done()]
                assert not failed, [task.exception() for task in failed]
                await asyncio.sleep(0.2)
            found = figures.now.clients
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
    total = sum(one.service for one in found.values())
    shares = {name: found[f"ns/{name}/app"].service / total for name in (*AGENTS, "flood")}
    ttft_s = {name: median(times) for name, times in traffic.ttft_s.items()}
    logging.getLogger(__name__).info(
        "shares %s; turns %s; median TTFT in seconds %s, of %s requests",
        {name: round(share, 3) for name, share in shares.items()},
        dict(traffic.turns),
        {name: round(one, 2) for name, one in ttft_s.items()},
        {name: len(times) for name, times in traffic.ttft_s.items()},
    )
    for name in AGENTS:
        assert traffic.turns[name] >= TURNS
        assert shares[name] == pytest.approx(shares["chat"], abs=0.05), shares
        assert shares[name] == pytest.approx(0.25, abs=0.07), shares
        assert ttft_s["chat"] / TTFT_FACTOR < ttft_s[name] < ttft_s["chat"] * TTFT_FACTOR, ttft_s
