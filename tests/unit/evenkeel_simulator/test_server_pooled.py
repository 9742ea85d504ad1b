"""Embeddings, scores and token ids: fixed sizes, deterministic, and useful to compare."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from evenkeel_contract.simulatedprompt import encode
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.logprobs import (
    chat_form,
    completion_form,
    probabilities,
    prompt_probabilities,
)
from evenkeel_simulator.server.pooled import (
    DIMENSIONS,
    detokenize,
    embedding,
    read_classify,
    read_embeddings,
    read_rerank,
    read_score,
    relevance,
    tokenize,
)
from evenkeel_simulator.server.speech import AnswerLimits, speak


def similarity(one: str, other: str) -> float:
    pairs = zip(
        embedding(encode(one), DIMENSIONS), embedding(encode(other), DIMENSIONS), strict=True
    )
    return sum(a * b for a, b in pairs)


def test_embeddings_are_unit_vectors_and_near_for_like_texts() -> None:
    for size in (1, 7, DIMENSIONS):
        vector = embedding(encode("a red cat"), size)
        assert len(vector) == size
        assert math.isclose(math.hypot(*vector), 1)
    assert similarity("a red cat", "a red cat") == pytest.approx(1)
    assert similarity("a red cat", "the red cat") > similarity("a red cat", "some blue oil")


def test_relevance_is_the_share_of_the_querys_words() -> None:
    assert relevance("Red cat", "a red cat sat") == 1
    assert relevance("red cat", "cat") == 0.5
    assert relevance("red cat", "a dog sat") == 0


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (read_embeddings, {"input": ""}, "Prompt cannot be empty"),
    (read_embeddings, {"input": "a", "dimensions": 0}, "dimensions must be from 1 to"),
    (read_embeddings, {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    (read_embeddings, {"input": ["a", 1]}, "input mixes"),
    (read_classify, {}, "missing required field `input`"),
    (read_score, {"query": "a", "items": ["b"]}, "label_token_ids must be provided"),
    (read_score, {"query": [], "items": ["b"], "label_token_ids": [1]}, "Query cannot be empty"),
    (read_rerank, {"query": " ", "documents": ["a"]}, "Query cannot be empty"),
    (read_rerank, {"query": "a", "documents": []}, "Documents cannot be empty"),
    (read_rerank, {"query": "a", "documents": ["b"], "top_n": 0}, "larger than 0"),
]


@pytest.mark.parametrize(("read", "fields", "sentence"), REFUSED)
def test_what_cannot_be_computed_is_refused(
    read: Any, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        read(json.dumps(fields).encode(), 1000)
    assert sentence in str(refused.value)


def test_texts_become_tokens_and_texts_again() -> None:
    def call(convert: Any, **fields: Any) -> Any:
        return json.loads(convert(json.dumps(fields).encode(), context_length=1000))

    found = call(tokenize, prompt="a red cat")
    assert found == {"tokens": encode("a red cat").tolist(), "count": 3, "max_model_len": 1000}
    assert call(detokenize, tokens=found["tokens"]) == {"text": "a red cat"}
    found = call(tokenize, prompt=["a", "red cat"])
    assert found["count"] == [1, 2]
    assert call(detokenize, tokens=found["tokens"]) == {"text": ["a", "red cat"]}
    assert call(detokenize, tokens=[]) == {"text": ""}
    chat = call(tokenize, messages=[{"role": "user", "content": "hi"}])
    assert chat["tokens"] == encode("<|user|>\nhi\n<|assistant|>\n").tolist()
    with pytest.raises(BadRequest, match="Exactly one of"):
        call(tokenize)


def test_the_produced_token_is_the_most_probable_and_all_sum_below_one() -> None:
    speech = speak(5, AnswerLimits(max_tokens=30, ignore_eos=True))
    found = list(probabilities(speech, 0, 30, 4))
    assert [one.text for one in found] == [speech.piece(index) for index in range(30)]
    for one in found:
        logprobs = [logprob for _, logprob in one.top]
        assert logprobs == sorted(logprobs, reverse=True)
        assert one.top[0] == (one.text, one.logprob)
        assert len({text for text, _ in one.top}) == 4
        assert sum(map(math.exp, logprobs)) < 1
    assert list(probabilities(speech, 10, 12, 4)) == found[10:12]


def test_probabilities_in_both_forms() -> None:
    speech = speak(5, AnswerLimits(max_tokens=2, ignore_eos=True))
    found = list(probabilities(speech, 0, 2, 1))
    [first, _] = chat_form(found)["content"]
    assert first["bytes"] == list(first["token"].encode())
    assert [top["token"] for top in first["top_logprobs"]] == [first["token"]]
    form = completion_form(found, echoed=list(prompt_probabilities(encode("a b"), 1)))
    assert form["tokens"] == ["a", " b", found[0].text, found[1].text]
    assert form["token_logprobs"][0] is form["top_logprobs"][0] is None
    assert form["top_logprobs"][1] == {" b": form["token_logprobs"][1]}
    assert -1 < form["token_logprobs"][1] < 0
    assert completion_form(list(probabilities(speech, 0, 2, 0)), echoed=[])["top_logprobs"] == []


def test_a_prompts_token_has_a_probability_by_what_stands_before_it() -> None:
    first, second, again = (
        [one.logprob for one in prompt_probabilities(encode(text), 1)]
        for text in ("a cat sat", "a dog sat", "a cat sat down")
    )
    assert first == again[: len(first)]
    assert first[0] == second[0]
    assert first[-1] != second[-1]
