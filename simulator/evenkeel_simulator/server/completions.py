"""`/v1/completions`: its body, and its answers; and the fields that all OpenAI bodies share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from evenkeel_simulator.server import tokens, wire
from evenkeel_simulator.server.ask import (
    Ask,
    checked_prompts,
    checked_top,
    one_rid,
    texts_or_tokens,
)
from evenkeel_simulator.server.bodies import BadRequest, decode
from evenkeel_simulator.server.conversation import json_writer
from evenkeel_simulator.server.sampling import (
    RangedFields,
    Sampling,
    check_ranges,
    checked,
    stops,
)
from evenkeel_simulator.server.served import ServedRequest
from evenkeel_simulator.server.structured import ANY_OBJECT, Schema


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _JsonSchema(msgspec.Struct):
    schema: Schema | None = None


class _ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None


class OpenAIFields(RangedFields, kw_only=True):
    """What the bodies of completions and chats have in common."""

    model: str = "default"
    n: int = 1
    stream: bool = False
    stream_options: _StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    no_stop_trim: bool = False
    seed: int | None = None
    response_format: _ResponseFormat | None = None
    regex: str | None = None
    ebnf: str | None = None
    rid: str | list[str] | None = None

    def schema(self) -> Schema | None:
        """The schema that the answer must follow. Raises `BadRequest`."""
        if self.regex or self.ebnf:
            raise BadRequest(
                "regex and ebnf: the simulator writes words or JSON, by no other grammar"
            )
        wish = self.response_format
        if wish is None or wish.type == "text":
            return None
        if wish.type == "json_object":
            return ANY_OBJECT
        if wish.json_schema is None or wish.json_schema.schema is None:
            raise BadRequest("response_format: json_schema has no schema")
        return wish.json_schema.schema


class _Completion(OpenAIFields, kw_only=True):
    prompt: str | list[str | int | list[int]]
    max_tokens: int = 16
    echo: bool = False
    best_of: int | None = None
    suffix: str | None = None
    logprobs: int | None = None
    json_schema: str | None = None


_completion: Final = msgspec.json.Decoder(_Completion, strict=False)
_schema: Final[msgspec.json.Decoder[Schema]] = msgspec.json.Decoder(Schema)


def parse_completion(body: bytes, *, context_length: int) -> Ask:
    """Body of `/v1/completions`; raises `BadRequest`."""
    wish = decode(_completion, body)
    if wish.max_tokens <= 0:
        raise BadRequest("max_tokens must be positive", by_schema=True)
    if wish.best_of is not None and wish.best_of != wish.n:
        raise BadRequest("best_of other than n is not served by the simulator")
    schema = parse_schema(wish.json_schema) if wish.json_schema else wish.schema()
    prompts, texts = texts_or_tokens("prompt", wish.prompt, context_length)
    made = sampling(wish, max_tokens=wish.max_tokens)
    return Ask(
        prompts=checked_prompts(prompts, made.n),
        echoes=tuple(texts or map(tokens.decode, prompts)) if wish.echo else None,
        batched=len(prompts) > 1,
        sampling=made,
        write=json_writer(schema),
        top_logprobs=None if wish.logprobs is None else checked_top(wish.logprobs, "logprobs"),
        **common(wish),
    )


def parse_schema(text: str) -> Schema:
    """A schema that a body holds as a text (`json_schema`). Raises `BadRequest`."""
    return decode(_schema, text.encode())


def sampling(wish: OpenAIFields, *, max_tokens: int | None) -> Sampling:
    """The sampling parameters of an OpenAI body; raises `BadRequest`."""
    check_ranges(wish)
    return checked(
        Sampling(
            max_tokens=max_tokens,
            min_tokens=wish.min_tokens,
            ignore_eos=wish.ignore_eos,
            stop=stops(wish.stop),
            stop_token_ids=frozenset(wish.stop_token_ids or ()),
            keep_stop=wish.no_stop_trim,
            n=wish.n,
            seed=wish.seed,
        )
    )


def common(wish: OpenAIFields) -> dict[str, Any]:
    """Further fields of `Ask`."""
    options = wish.stream_options or _StreamOptions()
    return {
        "model": wish.model,
        "stream": wish.stream,
        "include_usage": bool(options.include_usage),
        "continuous_usage": bool(options.continuous_usage_stats),
        "rid": one_rid(wish.rid),
    }


class Completion:
    """Its answers."""

    opens_early = False

    def __init__(self, ask: Ask, head: wire.Head) -> None:
        self._ask = ask
        self._head = head
        self._begun: set[int] = set()

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        return wire.completion_body(self._head, requests, self._ask)

    def news(self, request: ServedRequest, start: int) -> bytes:
        begins = request.index not in self._begun
        self._begun.add(request.index)
        return wire.completion_event(self._head, request, self._ask, start, begins=begins)

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        usage = b""
        if self._ask.include_usage:
            usage = wire.completion_usage_event(self._head, requests, n=self._ask.sampling.n)
        return usage + wire.DONE
