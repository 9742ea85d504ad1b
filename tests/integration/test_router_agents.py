"""Agents with tool loops over `/v1/messages` and `/v1/responses`, beside a flood of chats: the same share as a chat client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
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


AGENTS = {
    "chat": (chat, answered_chat),
    "messages": (messages, answered_messages),
    "responses": (responses, answered_responses),
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
        self.times_s: defaultdict[str, list[float]] = defaultdict(list)
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
        make, answered = AGENTS[name]
        results = True
        while results:
            said, results = answered(await self._send(name, *make(turns)))
            turns += said + results
        self.turns[name] += 1

    async def flood(self) -> None:
        while True:
            turn = {"role": "user", "content": f"{next(_numbers)}: {QUESTION * 4}"}
            await self._send("flood", *chat([turn]))

    async def _send(self, name: str, path: str, body: dict[str, Any]) -> Any:
        began_s = time.monotonic()
        key = {"authorization": f"Bearer sk-{name}"}
        answer = await self.client.post(path, json=body | {"model": MODEL}, headers=key)
        assert answer.status_code == 200, answer.text
        self.times_s[name].append(time.monotonic() - began_s)
        return answer.json()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_an_agent_gets_the_share_of_a_chat_client_whichever_api_it_speaks() -> None:
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
    logging.getLogger(__name__).info(
        "shares %s; turns %s; median seconds of a request %s",
        {name: round(share, 3) for name, share in shares.items()},
        dict(traffic.turns),
        {name: round(median(times), 2) for name, times in traffic.times_s.items()},
    )
    for name in AGENTS:
        assert traffic.turns[name] >= TURNS
        assert shares[name] == pytest.approx(shares["chat"], abs=0.05), shares
        assert shares[name] == pytest.approx(0.25, abs=0.07), shares
