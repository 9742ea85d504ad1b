"""Each API, whole, streamed, left by its client, and failed: the ledger has the tokens that the engine reports.

Over real sockets in front of a fake engine.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from evenkeel_contract.names import CLIENT_KEY_HEADER
from evenkeel_router.api.errors import Outcome
from evenkeel_router.app import Router

from tests.support.apis import (
    ANTHROPIC_USAGE,
    BODIES,
    EARLY_USAGE,
    FIRST_COUNTED,
    MESSAGES,
    OPENAI_USAGE,
    RESPONSES,
    RESPONSES_USAGE,
    STREAMS,
    answering,
    behind,
    counted,
    served,
    streaming,
    tokens_of,
)
from tests.support.nasty import Asked
from tests.support.routers import MODEL, until


@pytest.mark.parametrize(
    ("path", "body", "reply", "want"),
    [
        ("/v1/messages", MESSAGES, {"content": [], "usage": ANTHROPIC_USAGE}, (9, 4, 3)),
        ("/v1/chat/completions", BODIES["/v1/chat/completions"],
         {"choices": [], "usage": OPENAI_USAGE | {"completion_tokens": 3}}, (9, 4, 3)),
        ("/v1/completions", BODIES["/v1/completions"],
         {"choices": [], "usage": OPENAI_USAGE | {"completion_tokens": 3}}, (9, 4, 3)),
        ("/generate", BODIES["/generate"],
         {"text": "", "meta_info": {"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 3}}, (9, 4, 3)),
        ("/v1/messages?beta=true", MESSAGES, {"content": [], "usage": ANTHROPIC_USAGE}, (9, 4, 3)),
        ("/v1/responses", RESPONSES, {"output": [], "usage": RESPONSES_USAGE}, (9, 4, 3)),
        ("/v1/rerank", {"query": "q", "documents": ["a", "b"]},
         [{"score": 1, "meta_info": {"prompt_tokens": 5}}, {"score": 0, "meta_info": {"prompt_tokens": 4}}], (9, 0, 0)),
        ("/v1/rerank", {"model": MODEL, "query": "q", "documents": ["a"]},
         {"results": [], "usage": {"prompt_tokens": 9, "total_tokens": 9}}, (9, 0, 0)),
        ("/v1/score", {"query": "q", "items": ["a"]}, {"scores": [], "usage": OPENAI_USAGE}, (9, 4, 0)),
        ("/v1/classify", {"input": "Hi"}, {"data": [], "usage": OPENAI_USAGE}, (9, 4, 0)),
        ("/rerank", {"query": "q", "documents": ["a"]}, {"results": [], "usage": {"prompt_tokens": 9}}, (9, 0, 0)),
        ("/v2/rerank", {"query": "q", "documents": "a"}, {"results": [], "usage": {"prompt_tokens": 9}}, (9, 0, 0)),
        ("/score", {"queries": "q", "documents": ["a"]}, {"data": [], "usage": OPENAI_USAGE}, (9, 4, 0)),
        ("/pooling", {"input": "Hi"}, {"data": [], "usage": OPENAI_USAGE}, (9, 4, 0)),
        ("/pooling", {"data": {"x": 1}, "task": "plugin"}, {"data": [], "usage": OPENAI_USAGE}, (9, 4, 0)),
        ("/classify", {"input": "Hi"}, {"data": [], "usage": OPENAI_USAGE}, (9, 4, 0)),
        ("/classify", {"text": "Hi"}, {"embedding": [1], "meta_info": {"prompt_tokens": 9}}, (9, 0, 0)),
        ("/classify", {"text": ["Hi", "Ho"]},
         [{"embedding": [1], "meta_info": {"prompt_tokens": 5}}, {"embedding": [1], "meta_info": {"prompt_tokens": 4}}], (9, 0, 0)),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "Hi"}]}, {"data": [], "usage": OPENAI_USAGE}, (9, 4, 0)),
    ],
)  # fmt: skip
async def test_an_answer_passes_and_the_ledger_has_its_tokens(
    path: str, body: dict[str, Any], reply: Any, want: tuple[int, int, int]
) -> None:
    async with behind(answering(reply)) as (router, replica, client):
        response = await client.post(path, json=body)
        assert (response.status_code, response.json()) == (200, reply)
        assert tokens_of(router) == want
        assert served(router) == want[0] - want[1] + 2 * want[2]
        (asked,) = replica.asked
        assert asked.path == path.partition("?")[0]
        key = asked.headers.get(CLIENT_KEY_HEADER) or json.loads(asked.body)["routing_key"]
        assert key.startswith("ek1")
        assert "x-api-key" not in asked.headers
        assert json.loads(asked.body).items() >= body.items()


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_passes_byte_by_byte_and_the_ledger_has_its_tokens(path: str) -> None:
    whole = b"".join(STREAMS[path])
    pieces = [whole[n : n + 1] for n in range(len(whole))]
    for chunks in (STREAMS[path], [whole], pieces):
        async with behind(streaming(*chunks)) as (router, _, client):
            response = await client.post(path, json=BODIES[path] | {"stream": True})
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.content == whole
            await until(lambda: tokens_of(router) == (9, 4, 3), "the stream to be counted")
            assert served(router) == 5 + 2 * 3
            assert counted(router) == {}


@pytest.mark.parametrize("path", STREAMS)
async def test_a_client_that_leaves_pays_for_what_it_was_sent(path: str) -> None:
    begun = STREAMS[path][:3]
    async with behind(streaming(*begun, ends=False)) as (router, _, client):
        body = BODIES[path] | {"stream": True}
        async with client.stream("POST", path, json=body) as response:
            got = b""
            async for piece in response.aiter_raw():
                got += piece
                if len(got) >= len(b"".join(begun)):
                    break
        await until(lambda: counted(router) == {Outcome.CLIENT_GONE: 1}, "the client to be gone")
        _check_begun(router, path, events=3)


def _check_begun(router: Router, path: str, *, events: int) -> None:
    """The ledger has the tokens of the first `events` of a stream, whichever way it ended."""
    given, cached, output = tokens_of(router)
    assert output == events - FIRST_COUNTED.get(path, 1)
    if path in EARLY_USAGE:
        assert (given, cached) == (9, 4)
    assert served(router) == given - cached + 2 * output


@pytest.mark.parametrize("path", STREAMS)
async def test_a_stream_that_breaks_off_costs_what_was_sent(path: str) -> None:
    async def behave(asked: Asked) -> None:
        await asked.begin_stream(*STREAMS[path][:2], b"event: half")
        asked.close()

    async with behind(behave) as (router, _, client):
        response = await client.post(path, json=BODIES[path] | {"stream": True})
        assert response.content.startswith(b"".join(STREAMS[path][:2]))
        await until(lambda: counted(router) == {Outcome.REPLICA_FAILED: 1}, "the failure")
        _check_begun(router, path, events=2)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_refused_request_costs_nothing_and_a_lost_one_at_most_its_input(
    path: str, stream: bool
) -> None:
    error = {"message": "No.", "type": "BadRequestError", "code": 400}

    async def behave(asked: Asked) -> None:
        if b"refused" in asked.body:
            await asked.answer(json.dumps({"error": error}).encode(), status="400 Bad Request")
        else:
            asked.close()

    async with behind(behave) as (router, _, client):
        body = BODIES[path] | {"stream": stream}
        refused = await client.post(path, json=body | {"user": "refused"})
        assert (refused.status_code, tokens_of(router)) == (400, (0, 0, 0))
        assert served(router) == 0
        lost = await client.post(path, json=body | {"user": "lost"})
        assert (lost.status_code, tokens_of(router)) == (502, (0, 0, 0))
        assert served(router) <= 2  # in doubt, the input was computed (R11): "Hi", by the estimate


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_before_an_answer_pays_for_no_output(path: str) -> None:
    async def behave(asked: Asked) -> None:
        await asked.hang()

    async with behind(behave) as (router, replica, client):
        task = asyncio.create_task(client.post(path, json=BODIES[path]))
        await until(lambda: bool(replica.asked), "the request")
        task.cancel()
        await until(lambda: counted(router) == {Outcome.CLIENT_GONE: 1}, "the client to be gone")
        given, cached, output = tokens_of(router)
        assert output == 0
        assert served(router) == given - cached


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
async def test_an_answer_of_bytes_passes_with_what_describes_it(path: str) -> None:
    numbers = bytes(range(256))
    metadata = json.dumps({"data": [{"shape": [64]}], "usage": {"prompt_tokens": 9}})
    kind = f"application/octet-stream\r\nmetadata: {metadata}"
    async with behind(answering(numbers, kind=kind)) as (router, _, client):
        body = {"input": "Hi", "encoding_format": "bytes"}
        response = await client.post(path, json=body)
        assert (response.status_code, response.content) == (200, numbers)
        assert response.headers["metadata"] == metadata
        assert tokens_of(router) == (9, 0, 0)
        refused = await client.post(path, json={"input": "Hi"})
        assert refused.status_code == 502, "who asked for JSON gets no bytes"


async def test_a_prompt_may_be_scored_without_an_output() -> None:
    """As lm-eval asks for loglikelihoods of vLLM."""
    reply = {
        "choices": [{"text": "Hi", "logprobs": {}}],
        "usage": OPENAI_USAGE | {"completion_tokens": 0},
    }
    async with behind(answering(reply)) as (router, replica, client):
        body = {"prompt": "Hi", "echo": True, "max_tokens": 0, "logprobs": 1}
        response = await client.post("/v1/completions", json=body)
        assert (response.status_code, response.json()) == (200, reply)
        assert json.loads(replica.asked[0].body).items() >= body.items()
        assert tokens_of(router) == (9, 4, 0)
        assert served(router) == 5


OVERFLOWS = [
    "This model's maximum context length is 32 tokens. However, your prompt contains 90 input tokens, which exceeds this limit.",
    "The decoder prompt (length 90) is longer than the maximum model length of 32. Make sure that it is no smaller.",
    "The decoder prompt (length 32) plus the number of requested output tokens (at least 1) is longer than the maximum model length of 32.",
    "Input length (90) exceeds model's maximum context length (32).",
]


@pytest.mark.parametrize("message", OVERFLOWS)
@pytest.mark.parametrize("path", BODIES)
async def test_an_overflow_of_vllms_context_has_its_code_in_each_dialect(
    path: str, message: str
) -> None:
    error = {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}

    async def refuses(asked: Asked) -> None:
        await asked.answer(json.dumps({"error": error}).encode(), status="400 Bad Request")

    async with behind(refuses) as (router, _, client):
        for stream in (False, True):
            response = await client.post(path, json=BODIES[path] | {"stream": stream})
            given = response.json()["error"]
            assert (response.status_code, given["code"]) == (400, "context_length_exceeded")
            anthropic = path == "/v1/messages"
            assert given["message"] == ("prompt is too long: " if anthropic else "") + message
        assert served(router) == 0
