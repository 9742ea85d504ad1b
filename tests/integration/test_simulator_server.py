"""A simulated replica over loopback, with a stock client: what it answers, streamed and at once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from evenkeel_contract.simulatedprompt import encode
from evenkeel_simulator.server.app import RunningServer, running_server

from tests.support.replicas import settings

PROMPT = "Tell me a long story about the sea and the old harbour, and leave nothing out."


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running_server(settings()) as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
        yield http


def events(text: str) -> list[Any]:
    """The data of every event of a stream; `[DONE]` as it is."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(client: httpx.AsyncClient, path: str, **body: Any) -> list[Any]:
    response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = events(response.text)
    assert found[-1] == "[DONE]"
    return found[:-1]


async def test_a_completion_is_answered_at_once(client: httpx.AsyncClient) -> None:
    answer = await post(
        client, "/v1/completions", model="sim", prompt=PROMPT, max_tokens=20, ignore_eos=True
    )
    assert answer["object"] == "text_completion"
    assert answer["model"] == "sim"
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert len(encode(choice["text"])) == 20
    assert answer["usage"] == {
        "prompt_tokens": len(encode(PROMPT)),
        "completion_tokens": 20,
        "total_tokens": len(encode(PROMPT)) + 20,
        "prompt_tokens_details": {"cached_tokens": 0},
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


async def test_a_streamed_completion_has_the_same_text_in_parts(client: httpx.AsyncClient) -> None:
    wish = {"model": "sim", "prompt": PROMPT, "max_tokens": 20}
    whole = await post(client, "/v1/completions", **wish)
    chunks = await stream(client, "/v1/completions", **wish, stream_options={"include_usage": True})
    *parts, usage = chunks
    assert "".join(chunk["choices"][0]["text"] for chunk in parts) == whole["choices"][0]["text"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in parts]
    assert reasons[-1] == whole["choices"][0]["finish_reason"]
    assert set(reasons[:-1]) <= {None}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert usage["choices"] == []
    # The first request left the prompt in the cache, in whole pages.
    cached = len(encode(PROMPT)) // 16 * 16
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": cached}
    assert all(chunk["usage"] is None for chunk in parts)


async def test_a_chat_streams_role_then_text_then_reason(client: httpx.AsyncClient) -> None:
    wish = {"messages": [{"role": "user", "content": PROMPT}], "max_completion_tokens": 9}
    whole = await post(client, "/v1/chat/completions", **wish)
    assert whole["object"] == "chat.completion"
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    first, *parts, last = await stream(client, "/v1/chat/completions", **wish)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert first["choices"][0]["delta"]["content"] == ""
    assert "".join(p["choices"][0]["delta"]["content"] for p in parts) == message["content"]
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert "content" not in last["choices"][0]["delta"]


async def test_generate_repeats_the_text_so_far(client: httpx.AsyncClient) -> None:
    wish = {"text": PROMPT, "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
    whole = await post(client, "/generate", **wish)
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    assert whole["meta_info"]["completion_tokens"] == 5
    assert whole["output_ids"] == encode(whole["text"]).tolist()
    parts = await stream(client, "/generate", **wish)
    assert parts[-1]["text"] == whole["text"]
    for before, after in pairwise(parts):
        assert after["text"].startswith(before["text"])
        assert before["meta_info"]["finish_reason"] is None


async def test_prompts_and_choices_are_numbered(client: httpx.AsyncClient) -> None:
    answer = await post(client, "/v1/completions", prompt=["a b", "c d"], n=2, max_tokens=4)
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert answer["usage"]["prompt_tokens"] == len(encode("a b")) + len(encode("c d"))
    chunks = await stream(client, "/v1/completions", prompt=["a b", "c d"], n=2, max_tokens=4)
    told = {index: "" for index in range(4)}
    for chunk in chunks:
        told[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert list(told.values()) == texts


async def test_a_batch_of_generate_is_a_list(client: httpx.AsyncClient) -> None:
    params = {"max_new_tokens": 3}
    answers = await post(client, "/generate", text=["a", "b"], sampling_params=params, rid="r")
    assert [answer["meta_info"]["id"] for answer in answers] == ["r_0", "r_1"]
    parts = await stream(client, "/generate", text=["a", "b"], sampling_params=params)
    assert {part["index"] for part in parts} == {0, 1}


async def test_the_next_turn_of_a_chat_finds_prompt_and_answer_in_the_cache(
    client: httpx.AsyncClient,
) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    first = await post(client, "/v1/chat/completions", messages=messages, max_tokens=64)
    answer = first["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
    second = await post(client, "/v1/chat/completions", messages=messages, max_tokens=4)
    before = first["usage"]["prompt_tokens"] + len(encode(answer))
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert before - 2 * 16 < cached <= before


async def test_stop_strings_end_an_answer(client: httpx.AsyncClient) -> None:
    wish = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}
    whole = (await post(client, "/v1/completions", **wish))["choices"][0]["text"]
    stop = whole[10:14]
    [choice] = (await post(client, "/v1/completions", **wish, stop=stop))["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)


async def test_echo_puts_the_prompt_first(client: httpx.AsyncClient) -> None:
    wish = {"prompt": "one two", "max_tokens": 3, "echo": True}
    whole = await post(client, "/v1/completions", **wish)
    assert whole["choices"][0]["text"].startswith("one two ")
    parts = await stream(client, "/v1/completions", **wish)
    assert "".join(p["choices"][0]["text"] for p in parts) == whole["choices"][0]["text"]


async def test_every_event_can_contain_usage(client: httpx.AsyncClient) -> None:
    parts = await stream(
        client,
        "/v1/completions",
        prompt="a",
        max_tokens=4,
        ignore_eos=True,
        stream_options={"continuous_usage_stats": True},
    )
    counts = [part["usage"]["completion_tokens"] for part in parts]
    assert counts == sorted(counts)
    assert counts[-1] == 4


async def test_the_replica_describes_itself(client: httpx.AsyncClient) -> None:
    models = (await client.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == ["sim"]
    assert (await client.get("/v1/models/sim")).json()["owned_by"] == "sglang"
    missing = await client.get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    info = (await client.get("/server_info")).json()
    assert (info["page_size"], info["max_total_num_tokens"]) == (16, 10_000)
    assert info["kv_events"] is None
    [load] = (await client.get("/v1/loads")).json()["loads"]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)
    assert (await client.get("/ready")).status_code == 200
    assert (await client.get("/health")).status_code == 200


async def test_metrics_have_sglangs_names(client: httpx.AsyncClient) -> None:
    await post(client, "/v1/completions", prompt=PROMPT, max_tokens=3)
    await post(client, "/v1/completions", prompt=PROMPT, max_tokens=3)
    text = (await client.get("/metrics")).text
    labels = 'engine_type="unified",is_streaming="false",model_name="sim"'
    assert f"sglang:prompt_tokens_total{{{labels}}} {2.0 * len(encode(PROMPT))}" in text
    assert f"sglang:num_requests_total{{{labels}}} 2.0" in text
    assert 'sglang:cached_tokens_total{cache_source="device"' in text
    assert "sglang:time_to_first_token_seconds_bucket" in text
    assert 'sglang:num_running_reqs{engine_type="unified",model_name="sim"} 0.0' in text
    assert 'client_key_refused_total{model_name="sim",reason="missing"} 2.0' in text


async def test_a_crowded_replica_says_the_same_as_an_empty_one() -> None:
    # The small pool holds a handful at a time: requests queue and may be thrown out and resumed.
    wish = {"max_tokens": 200, "prompt": [f"say {number}" for number in range(60)]}
    told = []
    for kv_tokens in (1000, 100_000):
        async with (
            running_server(settings(kv_tokens=kv_tokens, speed=200.0)) as server,
            httpx.AsyncClient(base_url=server.url, timeout=30) as client,
        ):
            answer = await post(client, "/v1/completions", **wish)
            told.append((answer["choices"], answer["usage"]["completion_tokens"]))
    assert told[0] == told[1]


async def test_loads_have_one_rank_and_model_info_one_model(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/loads", params={"dp_rank": 0})).status_code == 200
    assert (await client.get("/v1/loads", params={"dp_rank": 1})).status_code == 400
    for path in ("/model_info", "/get_model_info"):
        assert (await client.get(path)).json()["served_model_name"] == "sim"
