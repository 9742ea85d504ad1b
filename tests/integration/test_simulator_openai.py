"""A stock OpenAI client against a simulated replica: answers, streams, errors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
from evenkeel_simulator.server.app import running_server

from tests.support.replicas import settings


@pytest.fixture
async def client() -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        running_server(settings(api_key="secret")) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as made,
    ):
        yield made


async def test_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="sim", prompt="hello", max_tokens=5)
    assert answer.choices[0].text
    assert answer.usage is not None and answer.usage.completion_tokens <= 5


async def test_chats_streamed_and_at_once(client: openai.AsyncOpenAI) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "user", "content": "hello"}
    ]
    whole = await client.chat.completions.create(model="sim", messages=messages, max_tokens=9)
    stream = await client.chat.completions.create(
        model="sim",
        messages=messages,
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["sim"]
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_errors_are_its_exceptions(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens must be positive"):
        await client.completions.create(model="sim", prompt="hello", max_tokens=-1)
    with pytest.raises(openai.BadRequestError, match="dimensions must be from 1 to"):
        await client.embeddings.create(model="sim", input="a", dimensions=10_000)
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
