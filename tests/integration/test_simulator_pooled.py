"""Rerank, score, classify and token ids over HTTP, and what a client is charged for a prompt that is only computed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from evenkeel_contract.simulatedprompt import encode
from evenkeel_simulator.server.app import RunningServer, running_server

from tests.support.replicas import settings


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running_server(settings()) as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as made:
        yield made


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_rerank_puts_the_document_that_shares_words_first(client: httpx.AsyncClient) -> None:
    documents = ["a dog sat", "a red cat", "the red sea"]
    found = await post(client, "/v1/rerank", query=" red cat", documents=documents)
    assert [one["index"] for one in found] == [1, 2, 0]
    assert found[0]["document"] == "a red cat"
    options = {"query": " red cat", "documents": documents, "top_n": 1, "return_documents": False}
    [best] = await post(client, "/v1/rerank", **options)
    assert (best["index"], "document" in best) == (1, False)


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank"])
async def test_a_ranking_has_the_shape_that_coheres_client_reads(
    client: httpx.AsyncClient, path: str
) -> None:
    documents = ["a dog sat", "a red cat", "the red sea"]
    found = await post(client, path, query=" red cat", documents=documents, top_n=2)
    assert [(one["index"], one["relevance_score"]) for one in found["results"]] == [
        (1, 1.0),
        (2, 0.5),
    ]
    assert found["results"][0]["document"] == {"text": "a red cat"}
    assert found["usage"]["prompt_tokens"] > 0


async def test_scores_and_classes_are_probabilities(client: httpx.AsyncClient) -> None:
    options = {"query": "is it", "items": ["red", "blue"], "label_token_ids": [5, 6, 7]}
    plain = await post(client, "/v1/score", **options)
    assert all(0 < score < 1 for row in plain["scores"] for score in row)
    shared = await post(client, "/v1/score", **options, apply_softmax=True)
    assert [sum(row) for row in shared["scores"]] == pytest.approx([1, 1])
    tokens = sum(len(encode("is it") + encode(item)) for item in ("red", "blue"))
    assert shared["usage"]["prompt_tokens"] == tokens
    [one, two] = (await post(client, "/v1/classify", input=["good", "bad"]))["data"]
    assert (one["index"], two["index"], one["num_classes"]) == (0, 1, 2)
    assert one["label"] == f"LABEL_{one['probs'].index(max(one['probs']))}"


async def test_tokens_of_a_prompt(client: httpx.AsyncClient) -> None:
    for prefix in ("", "/v1"):
        found = await post(client, f"{prefix}/tokenize", prompt="a red cat")
        assert found["tokens"] == encode("a red cat").tolist()
        back = await post(client, f"{prefix}/detokenize", tokens=found["tokens"])
        assert back == {"text": "a red cat"}
    refused = await client.post("/tokenize", json={})
    assert refused.status_code == 400


async def test_an_embedding_costs_its_input_and_no_output(
    server: RunningServer, client: httpx.AsyncClient
) -> None:
    text = "the sea ran out and the sky was red"
    usage = (await post(client, "/v1/embeddings", input=text))["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] == len(encode(text))
    [account] = server.replica.engine.accounts.clients.values()
    assert account.service == account.extend_tokens == len(encode(text))


async def test_a_schema_that_cannot_be_written_is_a_400(client: httpx.AsyncClient) -> None:
    format_ = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}
    for stream in (False, True):
        body = {"prompt": "a", "response_format": format_, "stream": stream}
        refused = await client.post("/v1/completions", json=body)
        assert refused.status_code == 400
        assert "found no instance" in refused.json()["message"]
