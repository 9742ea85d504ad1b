"""Tokens mode against the real engine: the same token ids, and the cached tokens that were foretold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from evenkeel_contract.promptfacts import FILES
from evenkeel_contract.routerconfig import PrefixConfig, PrefixMode, ReplicaConfig
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.prefix.model_tokenizers import ModelTokenizer
from evenkeel_router.prefix.prompts import Chat, read

from tests.sglang.models import NAME, PAGE_TOKENS
from tests.sglang.shared import SharedEngine
from tests.support.routers import KEY, config_for, router_of, until
from tests.support.tokenizers import ids_of_chat

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

USER: dict[str, Any] = {"role": "user", "content": "  How warm is it in Zürich, and why?  "}
TOOL = {
    "type": "function",
    "function": {
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Zürich"]}},
        },
        "name": "weather",
        "strict": True,
    },
}
CALLED = [
    {"role": "system", "content": " Be brief. <s> "},
    USER,
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "12"}, {"type": "text", "text": "°C"}]},
]  # fmt: skip
CHATS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Be brief."}, USER | {"name": "Ann"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
    {"messages": [USER, {"role": "assistant", "content": "It is"}]},
    {"messages": [USER, {"role": "assistant", "content": "It is"}], "continue_final_message": True},
    {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [USER], "reasoning_effort": "none"},
    {"messages": [USER], "reasoning_effort": "high"},
    {"messages": [USER], "tools": [TOOL]},
    {"messages": [USER], "tools": [TOOL], "tool_choice": "none"},
    {"messages": CALLED, "tools": [TOOL, {"type": "function", "function": {"name": "f"}}]},
]  # fmt: skip
PROMPTS = ("Once upon a time", "", "<s>twice", " wide  blanks\n\n\tand ünïcödé 漢字 🙂", "x" * 3000)


def ours(model: Path) -> ModelTokenizer:
    return ModelTokenizer(
        {name: (model / name).read_bytes() for name in FILES if (model / name).exists()}
    )


def prompt_of(chat: dict[str, Any]) -> Chat:
    asked = read(Endpoint.CHAT, msgspec.json.encode(chat))
    assert isinstance(asked, Chat)
    return asked


async def test_prompts_and_chats_have_the_engines_token_ids(templated: SharedEngine) -> None:
    await compare(templated, CHATS)


async def test_chats_in_parts_have_the_engines_token_ids(plain: SharedEngine) -> None:
    await compare(plain, CHATS[:3])


async def compare(engine: SharedEngine, chats: Sequence[dict[str, Any]]) -> None:
    """The engine's own ids of prompts and of these chats, and the router's."""
    tokenizer = ours(engine.model)
    async with httpx.AsyncClient(base_url=engine.url, timeout=120) as http:
        for prompt in PROMPTS:
            told = await http.post("/tokenize", json={"model": NAME, "prompt": prompt})
            assert tokenizer.prompt(prompt) == told.raise_for_status().json()["tokens"], prompt
        for chat in chats:
            body = chat | {"model": NAME, "max_tokens": 1, "return_prompt_token_ids": True}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            got = answer.json()["choices"][0]["prompt_token_ids"]
            assert await ids_of_chat(ours(engine.model), prompt_of(chat)) == got, chat


async def test_the_router_predicts_what_the_engine_finds_cached(
    templated: SharedEngine,
) -> None:
    prefix = PrefixConfig(
        mode=PrefixMode.TOKENS, tokenizer=str(templated.model), page_tokens=PAGE_TOKENS
    )
    config = config_for(ReplicaConfig(name="r0", url=templated.url), prefix=prefix)
    turns = [{"role": "system", "content": "You keep a ship on an even keel. " * 20}, USER]
    async with router_of(config) as router:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=router.url, headers=headers, timeout=120) as http:
            for _ in range(3):
                body = {"model": NAME, "messages": turns, "max_tokens": 8, "temperature": 0}
                answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status()
                said = answer.json()["choices"][0]["message"]["content"]
                turns += [{"role": "assistant", "content": said}, USER]
            text = {"text": "The same long prompt. " * 30, "sampling_params": {"max_new_tokens": 1}}
            for _ in range(2):
                (await http.post("/generate", json=text)).raise_for_status()
        foretold = router.rooms.totals.predictions["estimated"]
        assert foretold.predicted_tokens > 500
        # An answer's own pages are cached as well, and not foretold without events: at most one page a turn here.
        assert 0 <= foretold.reported_tokens - foretold.predicted_tokens <= 3 * PAGE_TOKENS
        assert not router.rooms.prefixes.untokenised.counts
        assert not router.rooms.prefixes.untokenised.distrusts("chat")


async def test_the_engine_sends_its_tokenizer_to_the_router(templated: SharedEngine) -> None:
    replica = ReplicaConfig(name="r0", url=templated.url, reports=templated.reports)
    config = config_for(replica, prefix=PrefixConfig(mode=PrefixMode.TOKENS))
    async with router_of(config) as router:
        await until(
            lambda: router.services.only.tokenising.tokenizer is not None, "the engine's tokenizer"
        )
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=router.url, headers=headers, timeout=120) as http:
            for chat in CHATS:
                body = chat | {"model": NAME, "max_tokens": 1}
                for _ in range(2):
                    (await http.post("/v1/chat/completions", json=body)).raise_for_status()
        foretold = router.rooms.totals.predictions["estimated"]
        # Chats share less than they might by chance: what is foretold is what was sent, page by page.
        assert foretold.predicted_tokens == foretold.reported_tokens > 0
        assert not router.rooms.prefixes.untokenised.counts
