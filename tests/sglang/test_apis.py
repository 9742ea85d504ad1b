"""Every API through the router to the real engine: tokens counted alike by client, router and engine, and by client.

The engine's own report must have each request under the client that sent it: SGLang reads the client key's header for
some endpoints only, so a hook does it for the others.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from evenkeel_contract.routerconfig import PrefixConfig, PrefixMode, ReplicaConfig

from tests.sglang.engine import Since
from tests.sglang.models import NAME, PAGE_TOKENS
from tests.sglang.shared import SharedEngine
from tests.support.conversations import APIS, assert_alike, converse, predictions_of
from tests.support.routers import KEY, config_for, router_of, until

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

CLIENT = "ns/acme/chat"
PROMPT = "You keep a ship on an even keel. " * 12
WEATHER = {"name": "weather", "description": "Weather.", "input_schema": {"type": "object"}}
MESSAGES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": PROMPT}]},
    {"messages": [{"role": "user", "content": PROMPT}], "system": "Be brief.", "tools": [WEATHER]},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Warm?"}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Zürich"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "12"},
                {"type": "text", "text": "And now?"},
            ]},
        ]
    },
]  # fmt: skip
RESPONSES: list[dict[str, Any]] = [
    {"input": PROMPT},
    {"input": [{"role": "user", "content": PROMPT}], "instructions": "Be brief."},
    {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Warm?"}]},
            {"role": "assistant", "content": "Let me see."},
            {"type": "function_call", "call_id": "t1", "name": "weather", "arguments": '{"city": "Zürich"}'},
            {"type": "function_call_output", "call_id": "t1", "output": "12"},
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
    },
]  # fmt: skip


async def test_every_api_is_counted_alike_by_engine_and_router(
    templated: SharedEngine,
) -> None:
    since = Since(templated.reports_port)
    replica = ReplicaConfig(name="r0", url=templated.url, reports=templated.reports)
    config = config_for(replica, prefix=PrefixConfig(mode=PrefixMode.TOKENS))
    async with (
        router_of(config) as router,
        httpx.AsyncClient(base_url=router.url, headers={"x-api-key": KEY}, timeout=120) as http,
    ):
        await until(
            lambda: router.services.only.tokenising.tokenizer is not None, "the engine's tokenizer"
        )
        sent = 0
        for body in MESSAGES:
            given = body | {"model": NAME, "max_tokens": 8, "temperature": 0}
            whole = (await http.post("/v1/messages", json=given)).raise_for_status().json()
            assert whole["usage"]["output_tokens"] > 0
            stream = (await http.post("/v1/messages", json=given | {"stream": True})).text
            assert stream.endswith('data: {"type":"message_stop"}\n\n')
            counted = await http.post("/v1/messages/count_tokens", json=given)
            usage = whole["usage"]
            of_input = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
            assert counted.json() == {"input_tokens": of_input}
            sent += 2
        for body in RESPONSES:
            given = body | {"model": NAME, "max_output_tokens": 8, "temperature": 0}
            whole = (await http.post("/v1/responses", json=given)).raise_for_status().json()
            assert whole["usage"]["input_tokens"] > 10
            stream = (await http.post("/v1/responses", json=given | {"stream": True})).text
            assert "event: response.incomplete" in stream or "event: response.completed" in stream
            sent += 2
        score = {"model": NAME, "query": PROMPT, "items": ["a", "b"], "label_token_ids": [5, 6]}
        scored = (await http.post("/v1/score", json=score)).raise_for_status().json()
        assert len(scored["scores"]) == 2
        sent += 2  # a request for each item
        tokens = (await http.post("/tokenize", json={"prompt": PROMPT})).raise_for_status().json()
        text = await http.post("/detokenize", json={"tokens": tokens["tokens"]})
        assert PROMPT.strip() in text.raise_for_status().json()["text"]

        # Tokenised as the engine did: every count was right, and every prompt but the score was read.
        untokenised = router.rooms.prefixes.untokenised
        assert {one.value: n for one, n in untokenised.counts.items()} == {"embeddings": 1}
        assert not any(
            untokenised.distrusts(f"{api} {kind}")
            for api in ("messages", "responses")
            for kind in ("chat", "tools")
        )
        (totals,) = router.rooms.totals.clients()
        # A report is up to 50 ms old.
        await until(lambda: since.rows()[CLIENT].requests == sent, "reports of all requests")
        await until(lambda: since.rows()[CLIENT].running == 0, "the engine to be done")
        reports = since.rows()
        row = reports.pop(CLIENT)
        assert reports == {}
        assert row.requests == sent
        # A score reports neither the tokens that it found cached nor the one that it makes for each item.
        assert row.extend_tokens + row.cached_tokens == totals.input_tokens
        assert row.output_tokens == totals.output_tokens + 2


async def test_a_conversation_hits_as_much_over_every_chat_api(
    templated: SharedEngine,
) -> None:
    for mode in PrefixMode:
        prefix = PrefixConfig(
            mode=mode,
            tokenizer=str(templated.model) if mode is PrefixMode.TOKENS else None,
            page_tokens=PAGE_TOKENS,
        )
        config = config_for(ReplicaConfig(name="r0", url=templated.url), model=NAME, prefix=prefix)
        found = {}
        for name, api in APIS.items():
            async with (
                router_of(config) as router,
                httpx.AsyncClient(
                    base_url=router.url, headers={"x-api-key": KEY}, timeout=120
                ) as http,
                httpx.AsyncClient(base_url=templated.url, timeout=120) as direct,
            ):
                await templated.idle(direct)
                (await direct.post("/flush_cache")).raise_for_status()
                # A random model's own answers have no equal length over each API.
                turns = await converse(http, api, NAME, answer="As long as the ballast is low.")
                found[name] = turns, predictions_of(router)
        assert_alike(found, PAGE_TOKENS)


async def test_errors_of_the_engine_arrive_in_the_format_of_their_api(
    templated: SharedEngine,
) -> None:
    async with (
        router_of(config_for(ReplicaConfig(name="r0", url=templated.url))) as router,
        httpx.AsyncClient(base_url=router.url, headers={"x-api-key": KEY}, timeout=120) as http,
    ):
        message = {"role": "user", "content": "x " * 40_000}
        body = {"model": NAME, "max_tokens": 8, "messages": [message]}
        for stream in (False, True):
            answer = await http.post("/v1/messages", json=body | {"stream": stream})
            assert '"type":"error"' in answer.text
            assert '"type":"invalid_request_error"' in answer.text
        given = {"model": NAME, "input": "x " * 40_000}
        refused = await http.post("/v1/responses", json=given)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            400,
            "context_length_exceeded",
        )
        missing = await http.post("/v1/rerank", json={"query": "q", "documents": ["d"]})
        assert missing.status_code == 400
        assert missing.json()["error"]["message"]
