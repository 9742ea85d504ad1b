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
from evenkeel_simulator.server.sampling import RangedFields, Sampling, checked, stops
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
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return ANY_OBJECT
        if wanted.json_schema is None or wanted.json_schema.schema is None:
            raise BadRequest("response_format: json_schema has no schema")
        return wanted.json_schema.schema


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
    fields = decode(_completion, body)
    if fields.max_tokens <= 0:
        raise BadRequest("max_tokens must be positive", by_schema=True)
    if fields.best_of is not None and fields.best_of != fields.n:
        raise BadRequest("best_of other than n is not served by the simulator")
    schema = parse_schema(fields.json_schema) if fields.json_schema else fields.schema()
    prompts, texts = texts_or_tokens("prompt", fields.prompt, context_length)
    made = sampling(fields, max_tokens=fields.max_tokens)
    return Ask(
        prompts=checked_prompts(prompts, made.n),
        echoes=tuple(texts or map(tokens.decode, prompts)) if fields.echo else None,
        batched=len(prompts) > 1,
        sampling=made,
        write=json_writer(schema),
        top_logprobs=None if fields.logprobs is None else checked_top(fields.logprobs, "logprobs"),
        **common(fields),
    )


def parse_schema(text: str) -> Schema:
    """A schema that a body holds as a text (`json_schema`). Raises `BadRequest`."""
    return decode(_schema, text.encode())


def sampling(fields: OpenAIFields, *, max_tokens: int | None) -> Sampling:
    """The sampling parameters of an OpenAI body; raises `BadRequest`."""
    return checked(
        fields,
        Sampling(
            max_tokens=max_tokens,
            min_tokens=fields.min_tokens,
            ignore_eos=fields.ignore_eos,
            stop=stops(fields.stop),
            stop_token_ids=frozenset(fields.stop_token_ids or ()),
            keep_stop=fields.no_stop_trim,
            n=fields.n,
            seed=fields.seed,
        ),
    )


def common(fields: OpenAIFields) -> dict[str, Any]:
    """Further fields of `Ask`."""
    options = fields.stream_options or _StreamOptions()
    return {
        "model": fields.model,
        "stream": fields.stream,
        "include_usage": bool(options.include_usage),
        "continuous_usage": bool(options.continuous_usage_stats),
        "rid": one_rid(fields.rid),
    }


class Completion:
    """Answers of `/v1/completions`."""

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
