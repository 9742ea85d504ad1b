"""LoRA adapters in the real engine: right outputs, prefixes of their own, fairness with more adapters than slots, and a fleet that
sends requests to where their adapter is loaded.

The adapters have random weights (`tests/support/adapters.py`); what they should produce is computed by transformers.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from evenkeel_contract.names import ADAPTER_HEADER

from tests.sglang.engine import ROOT, Since, ask, clients_of, environment_of, installed, tokens
from tests.sglang.fleet import session
from tests.sglang.models import NAME
from tests.sglang.shared import (
    ADAPTERS_RUNNING,
    QUANTUM,
    SharedEngine,
    SharedFleet,
    write_adapters,
)
from tests.sglang.test_plugin import LONGEST_INPUT, LONGEST_OUTPUT, places

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1800)]

RUNNING = ADAPTERS_RUNNING


def merged_outputs(
    adapters: Mapping[str, Path], input_ids: list[int], output_tokens: int
) -> dict[str | None, list[int]]:
    """What the model produces alone (None), and with each adapter in its weights."""
    environment = installed()
    done = subprocess.run(
        [
            *map(str, (environment / "bin/python", ROOT / "tests/sglang/merged.py")),
            str(environment / "model"),
            *(json.dumps(input_ids), str(output_tokens), *map(str, adapters.values())),
        ],
        env=environment_of({}),
        check=True,
        capture_output=True,
    )
    return dict(zip([None, *adapters], json.loads(done.stdout), strict=True))


async def test_each_adapter_gives_its_own_output_and_shares_no_prefix(
    adapted: SharedEngine, tmp_path: Path
) -> None:
    rng, since = random.Random(1), Since(adapted.reports_port)
    prompt = tokens(rng, 60)
    outputs = await asyncio.to_thread(merged_outputs, write_adapters(tmp_path), prompt, 8)
    assert len(set(map(tuple, outputs.values()))) == len(outputs)

    async with httpx.AsyncClient(base_url=adapted.url, timeout=600) as http:

        async def generate(name: str | None, input_ids: list[int]) -> dict[str, Any]:
            body = ask("a", input_ids, output_tokens=8) | ({"lora_path": name} if name else {})
            response = await http.post("/generate", json=body)
            return dict(response.raise_for_status().json())

        for name in outputs:
            cold = await generate(name, prompt)
            assert cold["output_ids"] == outputs[name]
            assert cold["meta_info"]["cached_tokens"] == 0
            warm = await generate(name, prompt)
            assert warm["output_ids"] == outputs[name]
            assert warm["meta_info"]["cached_tokens"] == len(prompt) - 1

        # Of responses SGLang ignores the adapter; the plug-in takes it from the header.
        body = {"model": NAME, "input": "ahoy", "max_output_tokens": 8, "temperature": 0}

        async def respond(**headers: str) -> object:
            found = await http.post("/v1/responses", json=body, headers=headers)
            return found.raise_for_status().json()["output"]

        def texts(output: Any) -> list[str]:
            return [part["text"] for item in output for part in item["content"]]

        plain = texts(await respond())
        with_adapter = texts(await respond(**{ADAPTER_HEADER: "north"}))
        assert plain != with_adapter

    row = since.rows()["ns/a/a"]
    # Each adapter is loaded once, which its client pays for; the model itself is free.
    assert row.service - row.extend_tokens - 2 * row.output_tokens == 3 * 256


async def test_a_flood_with_one_adapter_delays_no_client_of_other_adapters(
    adapted: SharedEngine,
) -> None:
    rng = random.Random(2)
    asks = []
    for client, name, count in (("greedy", "north", 160), ("b", "south", 20), ("c", "west", 20)):
        prefix = tokens(rng, 200)
        asks += [ask(client, prefix + tokens(rng, 20)) | {"lora_path": name} for _ in range(count)]

    answers = await adapted.run_queue(asks)

    # The others were sent last. They are level with the flood all along, but for U + Q^u.
    batch = 2 * LONGEST_OUTPUT * RUNNING
    ahead = (LONGEST_INPUT + 256 + batch + QUANTUM) / (20 + 2 * LONGEST_OUTPUT)
    for client in ("b", "c"):
        assert max(places(answers, client)) < 3 * 20 + 3 * ahead
    rows = clients_of(adapted.reports_port)
    for client, count in (("greedy", 160), ("b", 20), ("c", 20)):
        row = rows[f"ns/{client}/{client}"]
        assert row.extend_tokens + row.cached_tokens == count * LONGEST_INPUT
        assert row.output_tokens == count * LONGEST_OUTPUT


KEYS = {"north": "sk-ads-chat", "south": "sk-research-notebook"}
CLIENTS = {"north": "default/ads/chat", "south": "default/research/notebook"}


async def chat(http: aiohttp.ClientSession, model: str, text: str, **options: Any) -> Any:
    """(status, body) of a chat of the client that uses this adapter."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0}
    key = KEYS.get(model.removeprefix("tiny:"), KEYS["north"])
    headers = {"Authorization": f"Bearer {key}"}
    async with http.post("/v1/chat/completions", json=body | options, headers=headers) as response:
        return response.status, await response.json()


async def test_a_fleet_sends_requests_to_where_their_adapter_is_loaded(fleet: SharedFleet) -> None:
    async with session(fleet.url) as http:
        headers = {"Authorization": f"Bearer {KEYS['north']}"}
        async with http.get("/v1/models", headers=headers) as response:
            cards = (await response.json())["data"]
        assert [(card["id"], card.get("parent")) for card in cards] == [
            ("tiny", None),
            ("north", "tiny"),
            ("south", "tiny"),
        ]
        assert (await chat(http, "tiny:east", "ahoy"))[0] == 404

        # At the same time, so that the second one goes to the other replica.
        long = {"max_tokens": 200, "ignore_eos": True}
        await asyncio.gather(*(chat(http, name, "ahoy " * 20, **long) for name in KEYS))
        answers = {}
        for number in range(5):
            for name in KEYS:
                for model in (name, f"tiny:{name}"):
                    status, body = await chat(http, model, f"{number} ahoy " * 20, max_tokens=8)
                    assert status == 200
                    answers[number, name, model] = body["choices"][0]["message"]["content"]
        for number in range(5):
            assert answers[number, "north", "north"] == answers[number, "north", "tiny:north"]
            assert answers[number, "north", "north"] != answers[number, "south", "south"]

    rows = [clients_of(fleet.reports_port(f"replica-{number}")) for number in range(2)]
    homes = {
        name: [number for number, row in enumerate(rows) if client in row]
        for name, client in CLIENTS.items()
    }
    assert sorted(homes.values()) == [[0], [1]]
    for name, client in CLIENTS.items():
        assert rows[homes[name][0]][client].requests == 11
