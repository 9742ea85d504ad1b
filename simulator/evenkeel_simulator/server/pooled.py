"""Endpoints that compute a prompt and generate nothing: embeddings, rerank, scores, classes. Pure.

A real server serves these with a model for that purpose; the simulator serves them beside the model that generates. The
figures are invented, but they are useful to a program: texts that share tokens have similar embeddings and high scores.
"""

from __future__ import annotations

import base64
import math
import struct
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
import xxhash

from evenkeel_simulator.server import tokens, wire
from evenkeel_simulator.server.answers import MakeFormat
from evenkeel_simulator.server.ask import (
    Ask,
    checked_prompts,
    encode_all,
    one_rid,
    texts_or_tokens,
    token_prompts,
)
from evenkeel_simulator.server.bodies import BadRequest, decode
from evenkeel_simulator.server.chat import Message, chat_messages
from evenkeel_simulator.server.conversation import Conversation
from evenkeel_simulator.server.sampling import Sampling
from evenkeel_simulator.server.served import ServedRequest

DIMENSIONS: Final = 256
"""Length of an embedding, and the greatest that `dimensions` may ask for."""
LABELS: Final = ("LABEL_0", "LABEL_1")
"""Classes, as transformers names those of a model without names."""
_PLACES_PER_TOKEN: Final = 8
"""Places of an embedding that one token changes."""


class _Fields(msgspec.Struct, kw_only=True):
    model: str = "default"
    rid: str | list[str] | None = None


class _Embeddings(_Fields, kw_only=True):
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class _Classify(_Fields, kw_only=True):
    input: str | list[str | int | list[int]]


class _Score(_Fields, kw_only=True):
    query: str | list[int]
    items: str | list[str | list[int]]
    label_token_ids: list[int] | None = None
    apply_softmax: bool = False
    item_first: bool = False


class _Rerank(_Fields, kw_only=True):
    query: str
    documents: list[str]
    top_n: int | None = None
    return_documents: bool = True


_embeddings: Final = msgspec.json.Decoder(_Embeddings)
_classify: Final = msgspec.json.Decoder(_Classify)
_score: Final = msgspec.json.Decoder(_Score)
_rerank: Final = msgspec.json.Decoder(_Rerank)

MakeAnswer = Callable[[wire.Head, Sequence[ServedRequest]], object]


def read_embeddings(body: bytes, context_length: int) -> tuple[Ask, MakeFormat]:
    """Body of `/v1/embeddings`; raises `BadRequest`."""
    fields = decode(_embeddings, body)
    size = DIMENSIONS if fields.dimensions is None else fields.dimensions
    if not 1 <= size <= DIMENSIONS:
        raise BadRequest(f"dimensions must be from 1 to {DIMENSIONS}, got {size}.")
    prompts, _ = texts_or_tokens("input", fields.input, context_length)

    def answer(head: wire.Head, requests: Sequence[ServedRequest]) -> object:
        vectors = [embedding(request.prompt_ids, size) for request in requests]
        data = [
            {
                "embedding": _base64(vector) if fields.encoding_format == "base64" else vector,
                "index": index,
                "object": "embedding",
            }
            for index, vector in enumerate(vectors)
        ]
        usage = _usage(requests)
        return {"data": data, "model": head.model, "object": "list", "usage": usage}

    return _read(fields, prompts, answer)


def read_classify(body: bytes, context_length: int) -> tuple[Ask, MakeFormat]:
    """Body of `/v1/classify`; raises `BadRequest`."""
    fields = decode(_classify, body)
    prompts, _ = texts_or_tokens("input", fields.input, context_length)

    def answer(head: wire.Head, requests: Sequence[ServedRequest]) -> object:
        return {
            "id": f"classify-{requests[0].id}",
            "object": "list",
            "created": head.created,
            "model": head.model,
            "data": [_classified(index, one.prompt_ids) for index, one in enumerate(requests)],
            "usage": _usage(requests),
        }

    return _read(fields, prompts, answer)


def read_score(body: bytes, context_length: int) -> tuple[Ask, MakeFormat]:
    """Body of `/v1/score`; raises `BadRequest`."""
    fields = decode(_score, body)
    if not fields.label_token_ids:
        raise BadRequest("label_token_ids must be provided")
    labels = fields.label_token_ids
    queries, _ = texts_or_tokens("query", fields.query, context_length)
    if not queries:
        raise BadRequest("Query cannot be empty")
    query = queries[0]
    items, _ = texts_or_tokens("items", fields.items, context_length)
    pairs = tuple(item + query if fields.item_first else query + item for item in items)

    def answer(head: wire.Head, requests: Sequence[ServedRequest]) -> object:
        return {
            "scores": [
                _label_scores(one.prompt_ids, labels, softmax=fields.apply_softmax)
                for one in requests
            ],
            "pooled_hidden_states": None,
            "token_logprobs": None,
            "model": head.model,
            "usage": _usage(requests),
            "object": "scoring",
        }

    return _read(fields, pairs, answer)


def read_rerank(body: bytes, context_length: int) -> tuple[Ask, MakeFormat]:
    """Body of `/v1/rerank`; raises `BadRequest`."""
    fields = decode(_rerank, body)
    if not fields.query.strip():
        raise BadRequest("Query cannot be empty or whitespace only")
    if not fields.documents:
        raise BadRequest("Documents cannot be empty")
    if fields.top_n is not None and fields.top_n < 1:
        raise BadRequest("parameter top_n should be larger than 0.", by_schema=True)
    (query,) = encode_all([fields.query], context_length)
    documents = encode_all(fields.documents, context_length)

    def answer(head: wire.Head, requests: Sequence[ServedRequest]) -> object:
        found: list[dict[str, Any]] = [
            {
                "score": relevance(fields.query, fields.documents[one.index]),
                **({"document": fields.documents[one.index]} if fields.return_documents else {}),
                "index": one.index,
                "meta_info": {
                    "id": one.id,
                    "prompt_tokens": one.input_tokens,
                    "cached_tokens": one.cached_tokens,
                },
            }
            for one in requests
        ]
        return sorted(found, key=lambda one: -float(one["score"]))[: fields.top_n]

    return _read(fields, tuple(query + document for document in documents), answer)


def read_ranking(body: bytes, context_length: int) -> tuple[Ask, MakeFormat]:
    """Body of `/rerank` and `/v2/rerank`, which vLLM answers as Jina and Cohere do; raises `BadRequest`."""
    ask, _ = read_rerank(body, context_length)
    fields = decode(_rerank, body)

    def answer(head: wire.Head, requests: Sequence[ServedRequest]) -> object:
        found: list[dict[str, Any]] = [
            {
                "index": one.index,
                "document": {"text": fields.documents[one.index]},
                "relevance_score": relevance(fields.query, fields.documents[one.index]),
            }
            for one in requests
        ]
        return {
            "id": f"score-{requests[0].id}",
            "model": head.model,
            "usage": _usage(requests),
            "results": sorted(found, key=lambda one: -float(one["relevance_score"]))[
                : fields.top_n
            ],
        }

    return ask, lambda head: _PooledAnswer(head, answer)


def _read(
    fields: _Fields, prompts: tuple[array[int], ...], answer: MakeAnswer
) -> tuple[Ask, MakeFormat]:
    ask = Ask(
        model=fields.model,
        prompts=checked_prompts(prompts),
        sampling=Sampling(max_tokens=1, ignore_eos=True),
        generates=False,
        rid=one_rid(fields.rid),
    )
    return ask, lambda head: _PooledAnswer(head, answer)


def _usage(requests: Sequence[ServedRequest]) -> wire.Usage:
    prompt_tokens = sum(request.input_tokens for request in requests)
    return wire.Usage(prompt_tokens, prompt_tokens, 0)


class _PooledAnswer:
    """An answer that is never streamed."""

    def __init__(self, head: wire.Head, answer: MakeAnswer) -> None:
        self._head = head
        self._answer = answer

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        return wire.encode(self._answer(self._head, requests))


def embedding(prompt: Sequence[int], size: int) -> list[float]:
    """A unit vector of `size` numbers: each token adds 1 or -1 at a few places that its id decides."""
    places = [0.0] * size
    for token, times in Counter(prompt).items():
        digest = xxhash.xxh3_128_digest(token.to_bytes(4, "little"))
        for at in range(0, 2 * _PLACES_PER_TOKEN, 2):
            places[(digest[at] + 256 * digest[at + 1]) % size] += (
                times if digest[at] & 1 else -times
            )
    length = math.hypot(*places)
    if not length:  # tokens that cancel each other out
        return [1.0, *places[1:]]
    return [place / length for place in places]


def relevance(query: str, document: str) -> float:
    """Part of the query's words that the document has, 0 to 1. `query` has a word."""
    wanted = set(query.lower().split())
    return len(wanted & set(document.lower().split())) / len(wanted)


def _base64(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _classified(index: int, prompt: array[int]) -> dict[str, Any]:
    probs = _label_scores(prompt, range(len(LABELS)), softmax=True)
    label = LABELS[probs.index(max(probs))]
    return {"index": index, "label": label, "probs": probs, "num_classes": len(LABELS)}


def _label_scores(prompt: array[int], labels: Sequence[int], *, softmax: bool) -> list[float]:
    """Probability of each label; with `softmax`, they add up to 1."""
    data = prompt.tobytes()
    drawn = [1 + xxhash.xxh3_64_intdigest(data, label % 2**32) % 1000 for label in labels]
    total = sum(drawn) if softmax else 1001 * len(drawn)
    return [value / total for value in drawn]


class _Tokenize(msgspec.Struct):
    prompt: str | list[str] | None = None
    messages: list[Message] | None = None


class _Detokenize(msgspec.Struct):
    tokens: list[int | list[int]]


_tokenize: Final = msgspec.json.Decoder(_Tokenize)
_detokenize: Final = msgspec.json.Decoder(_Detokenize)


def tokenize(body: bytes, *, context_length: int) -> bytes:
    """Body of `/tokenize` → its answer; raises `BadRequest`."""
    fields = decode(_tokenize, body)
    if (fields.prompt is None) == (fields.messages is None):
        message = "Exactly one of 'prompt' or 'messages' must be provided."
        raise BadRequest(message, by_schema=True)
    if fields.messages is not None:
        conversation = Conversation(messages=chat_messages(fields.messages))
        found = conversation.prompts(context_length)
    else:
        texts = [fields.prompt] if isinstance(fields.prompt, str) else fields.prompt or []
        found = encode_all(texts, context_length)
    many = isinstance(fields.prompt, list)
    ids = [prompt.tolist() for prompt in found]
    return wire.encode(
        {
            "tokens": ids if many else ids[0],
            "count": [len(prompt) for prompt in ids] if many else len(ids[0]),
            "max_model_len": context_length,
        }
    )


def detokenize(body: bytes, *, context_length: int) -> bytes:
    """Body of `/detokenize` → its answer; raises `BadRequest`."""
    fields = decode(_detokenize, body)
    texts = [tokens.decode(ids) for ids in token_prompts("tokens", fields.tokens)]
    many = bool(fields.tokens) and isinstance(fields.tokens[0], list)
    return wire.encode({"text": texts if many else "".join(texts)})
