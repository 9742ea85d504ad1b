"""Names of LoRA adapters in requests: what they resolve to, what a replica receives, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_fairshare.prefix.index import text_blocks
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.errors import Outcome, Refusal, error_body
from evenkeel_router.api.inference import Inference, Limits
from evenkeel_router.request.own_answers import models
from msgspec.structs import replace

LIMITS = Limits(model="org/m:1", max_output_tokens=1000, adapters=frozenset({"a", "b/c"}))
TURNS = {"messages": [{"role": "user", "content": "Hi" * 100}]}
BODIES: dict[Endpoint, dict[str, Any]] = {
    Endpoint.COMPLETIONS: {"prompt": "Hi" * 100, "max_tokens": 3},
    Endpoint.CHAT: TURNS,
    Endpoint.MESSAGES: TURNS | {"max_tokens": 3},
    Endpoint.EMBEDDINGS: {"input": "Hi" * 100},
    Endpoint.RESPONSES: {"input": "Hi" * 100, "store": False},
}


def read(endpoint: Endpoint, body: dict[str, Any]) -> Inference:
    return endpoint.api.parse(json.dumps(body).encode(), LIMITS, "")


@pytest.mark.parametrize("endpoint", BODIES)
@pytest.mark.parametrize("name", ["a", "b/c"])
@pytest.mark.parametrize("prefix", ["", "org/m:1:"])
def test_an_adapter_is_named_alone_or_after_the_model(
    endpoint: Endpoint, name: str, prefix: str
) -> None:
    body = BODIES[endpoint] | {"user": "u"}
    found = read(endpoint, body | {"model": prefix + name})
    assert found.adapter == name
    assert json.loads(found.body) == body | {"model": f"org/m:1:{name}"}
    plain = read(endpoint, body | {"model": "org/m:1"})
    assert plain.adapter is None
    assert replace(found, adapter=None, body=b"", text=b"") == replace(plain, body=b"", text=b"")


def test_another_name_of_the_model_is_the_model_and_is_passed_on() -> None:
    limits = Limits(model="m", max_output_tokens=1000, aliases=frozenset({"short"}))
    body = {"model": "short", "prompt": "Hi"}
    found = Endpoint.COMPLETIONS.api.parse(json.dumps(body).encode(), limits, "")
    assert (found.adapter, json.loads(found.body)["model"]) == (None, "short")
    config = RouterConfig(namespace="ns", service="svc", model="m", model_aliases=("short",))
    listed = json.loads(models("", config, started_unix=0.0))["data"]
    assert [card["id"] for card in listed] == ["m", "short"]


@pytest.mark.parametrize("endpoint", BODIES)
def test_no_block_of_a_prompt_is_the_same_under_two_adapters(endpoint: Endpoint) -> None:
    texts = [
        read(endpoint, BODIES[endpoint] | {"model": name}).text for name in ("a", "b/c", "org/m:1")
    ]
    blocks = [set(text_blocks(text, block_bytes=16)) for text in texts]
    assert all(len(some) > 5 for some in blocks)
    assert not blocks[0] & blocks[1]
    assert not blocks[0] & blocks[2]


def test_sglangs_own_field_names_an_adapter_too() -> None:
    body = {"text": "Hi" * 100, "lora_path": "a"}
    found = read(Endpoint.GENERATE, body)
    assert (found.adapter, json.loads(found.body)) == ("a", body)
    given = {"model": "org/m:1", "prompt": "Hi", "lora_path": "a"}
    found = read(Endpoint.COMPLETIONS, given)
    assert (found.adapter, json.loads(found.body)["model"]) == ("a", "org/m:1:a")


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        *((endpoint, body | {"model": name}) for endpoint, body in BODIES.items()
          for name in ("z", "org/m:1:z", "other:a", ":a", "")),
        (Endpoint.GENERATE, {"text": "Hi", "lora_path": "z"}),
        (Endpoint.COMPLETIONS, {"model": "org/m:1", "prompt": "Hi", "lora_path": "z"}),
    ],
)  # fmt: skip
def test_an_unknown_adapter_is_not_found_in_the_words_of_each_api(
    endpoint: Endpoint, body: dict[str, Any]
) -> None:
    with pytest.raises(Refusal) as caught:
        read(endpoint, body)
    refusal = caught.value
    assert (refusal.outcome, refusal.status, refusal.param) == (Outcome.NOT_FOUND, 404, "model")
    answer = json.loads(error_body(refusal, endpoint.api.dialect))
    assert "does not exist" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.RERANK, {"query": "a", "documents": ["b"]}),
        (Endpoint.SCORE, {"query": "a", "items": ["b"]}),
        (Endpoint.CLASSIFY, {"input": "a"}),
    ],
)
def test_an_api_in_which_engines_ignore_adapters_refuses_them(
    endpoint: Endpoint, body: dict[str, Any]
) -> None:
    with pytest.raises(Refusal) as caught:
        read(endpoint, body | {"model": "a"})
    assert (caught.value.status, caught.value.code) == (400, "unsupported_model")
    assert read(endpoint, body | {"model": "org/m:1"}).adapter is None


def test_several_adapters_in_one_request_are_refused() -> None:
    with pytest.raises(Refusal) as caught:
        read(Endpoint.GENERATE, {"text": ["a", "b"], "lora_path": ["a", None]})
    assert (caught.value.status, caught.value.param) == (400, "lora_path")


@pytest.mark.parametrize("endpoint", [Endpoint.TOKENIZE, Endpoint.COUNT_TOKENS])
def test_an_adapter_has_the_tokenizer_of_the_model(endpoint: Endpoint) -> None:
    assert read(endpoint, TURNS | {"model": "a"}).adapter is None
    with pytest.raises(Refusal):
        read(endpoint, TURNS | {"model": "z"})


def test_the_list_of_models_has_every_adapter_with_its_parent() -> None:
    config = RouterConfig(namespace="ns", service="s", model="m", adapters=("a", "b/c"))
    listed = json.loads(models("", config, started_unix=7.9))["data"]
    assert [(card["id"], card.get("parent")) for card in listed] == [
        ("m", None),
        ("a", "m"),
        ("b/c", "m"),
    ]
    assert json.loads(models("b%2Fc", config, started_unix=7.9)) == listed[2]
    with pytest.raises(Refusal):
        models("c", config, started_unix=7.9)
