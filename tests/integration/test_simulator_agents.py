"""Agent programs with stock OpenAI and Anthropic clients against a simulated replica.

The tests of `/v1/messages` are skipped where the `anthropic` package is missing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from evenkeel_contract.simulatedprompt import encode
from evenkeel_simulator.server.app import RunningServer, running_server
from evenkeel_simulator.server.conversation import IMAGE_TOKENS
from evenkeel_simulator.server.pooled import DIMENSIONS
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from tests.support.replicas import settings

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
QUESTION = "What will the weather be in the place that I love most of all the places by the sea?"
KEY = "secret"
PAGE = 16


class Step(BaseModel):
    """One step of a plan."""

    title: str
    minutes: int


class Plan(BaseModel):
    """What an application asks for."""

    goal: str
    steps: list[Step]
    note: str | None


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running_server(settings(api_key=KEY, page_size=PAGE)) as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    base_url = f"{server.url}/v1"
    async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
async def claude(server: RunningServer) -> AsyncIterator[Any]:
    anthropic = pytest.importorskip("anthropic", reason="needs the anthropic package (extra dev)")
    async with anthropic.AsyncAnthropic(base_url=server.url, auth_token=KEY, max_retries=0) as made:
        yield made


def check(arguments: str) -> None:
    Draft202012Validator(PARAMETERS).validate(json.loads(arguments))


# Chats


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_calls_a_tool_and_then_answers(
    client: openai.AsyncOpenAI, streamed: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    rounds = 0
    while True:
        options: Any = {"model": "sim", "messages": messages, "tools": [CHAT_TOOL]}
        if streamed:
            async with client.chat.completions.stream(**options) as stream:
                answer = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(**options)
        [choice] = answer.choices
        rounds += 1
        if choice.finish_reason != "tool_calls":
            break
        assert not choice.message.content
        assert choice.message.tool_calls
        messages.append(choice.message.model_dump(exclude_none=True))
        for call in choice.message.tool_calls:
            assert call.type == "function" and call.function.name == "weather"
            check(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "20 degrees"})
    assert rounds == 2
    assert choice.message.content
    assert not choice.message.tool_calls


async def test_several_calls_of_one_answer_are_streamed_one_after_the_other(
    client: openai.AsyncOpenAI,
) -> None:
    tools = [CHAT_TOOL, {"type": "function", "function": {"name": "time"}}]
    for seed in range(40):  # one in four answers has two calls
        options: Any = {"model": "sim", "tools": tools, "seed": seed, "tool_choice": "required"}
        options["messages"] = [{"role": "user", "content": QUESTION}]
        whole = await client.chat.completions.create(**options)
        calls = whole.choices[0].message.tool_calls
        assert calls
        if len(calls) == 2:
            break
    async with client.chat.completions.stream(**options) as stream:
        streamed = await stream.get_final_completion()
    again = streamed.choices[0].message.tool_calls
    assert again
    assert [one.function for one in again] == [
        type(again[0].function).model_validate(
            one.function.model_dump() | {"parsed_arguments": None}
        )
        for one in calls
    ]
    assert len({one.id for one in again}) == 2


async def test_structured_outputs_are_parsed_by_the_client(client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "plan"}]
    for seed in range(5):
        answer = await client.chat.completions.parse(
            model="sim", messages=messages, response_format=Plan, seed=seed
        )
        assert isinstance(answer.choices[0].message.parsed, Plan)
    async with client.chat.completions.stream(
        model="sim", messages=messages, response_format=Plan, seed=4
    ) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        streamed = await stream.get_final_completion()
    assert len(deltas) > 5
    assert streamed.choices[0].message.parsed == answer.choices[0].message.parsed
    text = answer.choices[0].message.content
    assert text and answer.usage
    assert answer.usage.completion_tokens == len(encode(text)) + 1


async def test_max_tokens_cut_json(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="sim",
        messages=[{"role": "user", "content": "plan"}],
        response_format={"type": "json_object"},
        max_tokens=2,
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage and answer.usage.completion_tokens == 2


async def test_probabilities_of_chats_and_completions(client: openai.AsyncOpenAI) -> None:
    options: Any = {
        "model": "sim",
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": 3,
        "max_tokens": 6,
    }
    whole = (await client.chat.completions.create(**options)).choices[0]
    assert whole.logprobs and whole.logprobs.content
    assert "".join(one.token for one in whole.logprobs.content) == whole.message.content
    assert {len(one.top_logprobs) for one in whole.logprobs.content} == {3}
    stream = await client.chat.completions.create(**options, stream=True)
    streamed = [
        one
        async for chunk in stream
        for choice in chunk.choices
        if choice.logprobs
        for one in choice.logprobs.content or ()
    ]
    assert streamed == whole.logprobs.content

    short: Any = {"model": "sim", "prompt": "a cat", "max_tokens": 3, "logprobs": 2, "echo": True}
    text = (await client.completions.create(**short)).choices[0]
    assert text.logprobs and text.logprobs.tokens
    assert "".join(text.logprobs.tokens) == text.text
    parts = [
        part.choices[0] async for part in await client.completions.create(**short, stream=True)
    ]
    tokens = [token for part in parts if part.logprobs for token in part.logprobs.tokens or ()]
    assert tokens == text.logprobs.tokens


async def test_n_answers_differ_and_their_tokens_add_up(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": QUESTION}], n=3, max_tokens=20
    )
    texts = [choice.message.content or "" for choice in answer.choices]
    assert len(set(texts)) == 3
    assert answer.usage
    prompt = f"<|user|>\n{QUESTION}\n<|assistant|>\n"
    assert answer.usage.prompt_tokens == len(encode(prompt))
    assert answer.usage.completion_tokens >= sum(len(encode(text)) for text in texts)


async def test_images_are_accepted_and_counted(client: openai.AsyncOpenAI) -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    used = []
    for parts in ([{"type": "text", "text": "look"}], [{"type": "text", "text": "look"}, image]):
        messages: Any = [{"role": "user", "content": parts}]
        answer = await client.chat.completions.create(model="sim", messages=messages, max_tokens=4)
        assert answer.usage
        used.append(answer.usage.prompt_tokens)
    assert used[1] == used[0] + IMAGE_TOKENS


# Embeddings


async def test_embeddings_as_the_client_asks_for_them_by_default(
    client: openai.AsyncOpenAI,
) -> None:
    texts = ["a red cat", "the sea"]
    packed = await client.embeddings.create(model="sim", input=texts)
    plain = await client.embeddings.create(model="sim", input=texts, encoding_format="float")
    assert [len(one.embedding) for one in packed.data] == [DIMENSIONS] * 2
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    assert packed.usage.prompt_tokens == sum(len(encode(text)) for text in texts)
    assert packed.usage.total_tokens == packed.usage.prompt_tokens
    short = await client.embeddings.create(model="sim", input=texts, dimensions=8)
    assert len(short.data[0].embedding) == 8


# Responses


RESPONSES_TOOL: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS}


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_over_responses(client: openai.AsyncOpenAI, streamed: bool) -> None:
    conversation: list[Any] = [{"role": "user", "content": QUESTION}]
    kinds = []
    for _ in range(2):
        options: Any = {"model": "sim", "input": conversation, "tools": [RESPONSES_TOOL]}
        if streamed:
            async with client.responses.stream(**options) as stream:
                async for _ in stream:
                    pass
                answer = await stream.get_final_response()
        else:
            answer = await client.responses.create(**options)
        assert answer.status == "completed"
        for item in answer.output:
            kinds.append(item.type)
            conversation.append(item.model_dump(exclude_none=True))
            if item.type == "function_call":
                check(item.arguments)
                result = {"type": "function_call_output", "call_id": item.call_id, "output": "20"}
                conversation.append(result)
    assert kinds == ["function_call", "message"]
    assert answer.output_text
    assert answer.usage and answer.usage.input_tokens_details.cached_tokens > 0


async def events_of(client: openai.AsyncOpenAI, **options: Any) -> list[Any]:
    stream = await client.responses.create(model="sim", stream=True, **options)
    return [event async for event in stream]


def names(events: list[Any]) -> list[str]:
    """Names of events, repetitions left out."""
    found = [event.type for event in events]
    return [name for at, name in enumerate(found) if at == 0 or name != found[at - 1]]


async def test_the_order_of_a_responses_stream(client: openai.AsyncOpenAI) -> None:
    options: Any = {"input": "hi", "instructions": "be kind", "max_output_tokens": 9}
    events = await events_of(client, **options)
    assert names(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{events[-1].response.status}",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    whole = await client.responses.create(model="sim", **options)
    assert whole.output_text == text == events[-1].response.output_text
    assert whole.instructions == "be kind"
    assert {e.item_id for e in events if hasattr(e, "item_id")} == {
        events[-1].response.output[0].id
    }

    events = await events_of(client, input=QUESTION, tools=[RESPONSES_TOOL])
    assert names(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    check(events[-1].response.output[0].arguments)


async def test_a_response_that_max_output_tokens_cut_is_incomplete(
    client: openai.AsyncOpenAI,
) -> None:
    options: Any = {"input": QUESTION, "max_output_tokens": 3}
    whole = await client.responses.create(model="sim", **options)
    assert whole.status == "incomplete"
    assert whole.incomplete_details and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage and whole.usage.output_tokens == 3
    assert (await events_of(client, **options))[-1].type == "response.incomplete"


async def test_a_response_is_parsed_by_the_client(client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.parse(model="sim", input="plan", text_format=Plan)
    assert isinstance(answer.output_parsed, Plan)


async def test_errors_of_responses_are_the_clients(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="Response store is disabled"):
        await client.responses.create(model="sim", input="a", previous_response_id="resp_1")


# Messages

CLAUDE_TOOL = {"name": "weather", "input_schema": PARAMETERS}


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_over_messages(claude: Any, streamed: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    reasons = []
    for _ in range(2):
        options = {"model": "sim", "max_tokens": 400, "messages": messages, "tools": [CLAUDE_TOOL]}
        if streamed:
            async with claude.messages.stream(**options) as stream:
                answer = await stream.get_final_message()
        else:
            answer = await claude.messages.create(**options)
        reasons.append(answer.stop_reason)
        messages.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        for call in calls:
            Draft202012Validator(PARAMETERS).validate(call.input)
        results = [{"type": "tool_result", "tool_use_id": c.id, "content": "20"} for c in calls]
        messages.append({"role": "user", "content": results})
    assert reasons == ["tool_use", "end_turn"]
    assert answer.content[0].text
    assert answer.usage.cache_read_input_tokens > 0


async def test_the_order_of_a_messages_stream(claude: Any) -> None:
    options = {"model": "sim", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    events = [event async for event in await claude.messages.create(**options, stream=True)]
    assert names(events) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    whole = await claude.messages.create(**options)
    text = "".join(e.delta.text for e in events if e.type == "content_block_delta")
    assert text == whole.content[0].text
    assert events[-2].usage.output_tokens == whole.usage.output_tokens
    assert events[-2].delta.stop_reason == whole.stop_reason


async def test_tokens_are_counted_and_cached_input_is_apart(claude: Any) -> None:
    options = {"model": "sim", "messages": [{"role": "user", "content": QUESTION}]}
    counted = (await claude.messages.count_tokens(**options)).input_tokens
    first = (await claude.messages.create(**options, max_tokens=2)).usage
    assert (first.input_tokens, first.cache_read_input_tokens) == (counted, None)
    again = (await claude.messages.create(**options, max_tokens=2)).usage
    assert again.input_tokens + again.cache_read_input_tokens == counted
    assert again.cache_read_input_tokens > counted - 2 * PAGE


async def test_errors_of_messages_are_the_clients(claude: Any) -> None:
    import anthropic

    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(anthropic.BadRequestError, match="max_tokens must be positive"):
        await claude.messages.create(model="sim", messages=messages, max_tokens=0)


# All of them


async def test_a_conversation_finds_its_turns_in_the_cache_over_every_api(
    client: openai.AsyncOpenAI, claude: Any
) -> None:
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    chat = await client.chat.completions.create(model="sim", messages=turns, max_tokens=60)
    answer = chat.choices[0].message.content or ""
    assert chat.usage
    computed = chat.usage.prompt_tokens + len(encode(answer))
    turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
    response = await client.responses.create(model="sim", input=turns, max_output_tokens=60)
    assert response.usage
    cached = response.usage.input_tokens_details.cached_tokens
    assert computed - 2 * PAGE < cached <= computed
    turns += [{"role": "assistant", "content": response.output_text}]
    turns += [{"role": "user", "content": "And then?"}]
    computed = response.usage.input_tokens + len(encode(response.output_text))
    message = await claude.messages.create(model="sim", messages=turns, max_tokens=5)
    cached = message.usage.cache_read_input_tokens
    assert computed - 2 * PAGE < cached <= computed
