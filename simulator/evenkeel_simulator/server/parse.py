"""Parses request bodies. Pure: bytes in, `Ask` or `BadRequest` out.

The fields are those of SGLang 0.5.23 that
change what a simulator does; all others are ignored, as SGLang ignores fields it does not know.

SGLang refuses some bodies with 400 and the type `Bad Request` (its schema) and others
with `BadRequestError` (its own checks); clients see both, so `BadRequest` keeps them apart.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from evenkeel_contract.simulatedprompt import ChatMessage, encode, render

from evenkeel_simulator.server import tokens
from evenkeel_simulator.server.tokens import MAX_TOKEN_ID, are_tokens

MAX_CHOICES: Final = 128
"""Prompts times `n` of one request: each is a request of its own to the engine."""
MAX_STOPS: Final = 32  # SGLang's own limit
DEFAULT_NATIVE_TOKENS: Final = 128  # `/generate` without max_new_tokens


class BadRequest(ValueError):
    """A request that cannot be served; the message names the field and is safe to show."""

    def __init__(self, message: str, *, by_schema: bool = False) -> None:
        super().__init__(message)
        self.by_schema = by_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters, checked."""

    max_tokens: int | None
    """None: the natural length of the answer."""
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    keep_stop: bool
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One HTTP request, parsed."""

    model: str
    prompts: tuple[array[int], ...]
    """Token ids, at least one prompt; choices are numbered prompt by prompt."""
    echoes: tuple[str, ...] | None
    """What goes before each prompt's answer (`echo`), None for nothing."""
    batched: bool
    """The body held a list of prompts."""
    sampling: Sampling
    stream: bool
    include_usage: bool = False
    continuous_usage: bool = False
    rid: str | None = None
    """The request's own id (`/generate` and the OpenAI bodies); None: one is made."""
    routing_key: str | None = None
    """The client key of `/generate`. None on OpenAI endpoints, where it is a header."""
    return_ids: bool = False


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _OpenAI(msgspec.Struct, kw_only=True):
    """What both OpenAI bodies have."""

    model: str = "default"
    n: int = 1
    stream: bool = False
    stream_options: _StreamOptions | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    no_stop_trim: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    rid: str | list[str] | None = None
    priority: int | None = None
    return_token_ids: bool = False


class _Completion(_OpenAI, kw_only=True):
    prompt: str | list[str | int | list[int]]
    max_tokens: int = 16
    echo: bool = False
    best_of: int | None = None
    suffix: str | None = None
    logprobs: int | None = None
    json_schema: str | None = None


class _Chat(_OpenAI, kw_only=True):
    messages: list[ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class _NativeSampling(msgspec.Struct, kw_only=True):
    max_new_tokens: int | None = DEFAULT_NATIVE_TOKENS
    min_new_tokens: int | None = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int | None] | None = None
    ignore_eos: bool | None = False
    no_stop_trim: bool | None = False
    n: int | None = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None


class _Native(msgspec.Struct, kw_only=True):
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: _NativeSampling | list[_NativeSampling] | None = None
    stream: bool = False
    rid: str | list[str] | None = None
    routing_key: str | None = None
    return_logprob: bool | list[bool] | None = None
    priority: int | None = None


_completion: Final = msgspec.json.Decoder(_Completion, strict=False)
_chat: Final = msgspec.json.Decoder(_Chat, strict=False)
_native: Final = msgspec.json.Decoder(_Native, strict=False)


def parse_completion(body: bytes, *, context_length: int) -> Ask:
    """Body of `/v1/completions`; raises `BadRequest`."""
    wish = decode(_completion, body)
    _refuse_unserved(wish, logprobs=wish.logprobs is not None, grammar=wish.json_schema)
    if wish.max_tokens <= 0:
        raise BadRequest("max_tokens must be positive", by_schema=True)
    if wish.best_of is not None and wish.best_of != wish.n:
        raise BadRequest("best_of other than n is not served by the simulator")
    texts, ids = _prompts(wish.prompt)
    prompts = tuple(ids) if ids else _encode_all(texts, context_length)
    sampling = _sampling(wish, max_tokens=wish.max_tokens)
    return Ask(
        prompts=_checked_prompts(prompts, sampling.n),
        echoes=_echoes(texts, ids) if wish.echo else None,
        batched=len(prompts) > 1,
        sampling=sampling,
        **_common(wish),
    )


def parse_chat(body: bytes, *, context_length: int) -> Ask:
    """Body of `/v1/chat/completions`; raises `BadRequest`."""
    wish = decode(_chat, body)
    if not wish.messages:
        raise BadRequest("Messages cannot be empty.")
    _refuse_unserved(wish, logprobs=wish.logprobs, grammar=None)
    limit = wish.max_completion_tokens or wish.max_tokens
    if limit == 0:
        raise BadRequest("max_tokens is 0, must be at least 1: the simulator always generates")
    if wish.tool_choice == "required" or isinstance(wish.tool_choice, dict):
        raise BadRequest("tool_choice: the simulator calls no tools")
    try:
        text = render(wish.messages)
    except ValueError as error:
        raise BadRequest(str(error)) from error
    return Ask(
        prompts=_encode_all([text], context_length),
        echoes=None,
        batched=False,
        sampling=_sampling(wish, max_tokens=limit),
        **_common(wish),
    )


def parse_generate(body: bytes, *, context_length: int) -> Ask:
    """Body of SGLang's `/generate`; raises `BadRequest`."""
    wish = decode(_native, body)
    if wish.return_logprob not in (None, False):
        raise BadRequest("return_logprob: the simulator has no probabilities")
    if wish.text is not None:
        batched = isinstance(wish.text, list)
        texts = wish.text if isinstance(wish.text, list) else [wish.text]
        prompts = _encode_all(texts, context_length)
    elif wish.input_ids is not None:
        if not wish.input_ids:
            raise BadRequest("input_ids cannot be empty.")
        batched = isinstance(wish.input_ids[0], list)
        prompts = tuple(_token_prompts("input_ids", wish.input_ids))
    else:
        raise BadRequest("Either text, input_ids or input_embeds should be provided.")
    if isinstance(wish.sampling_params, list):
        raise BadRequest("sampling_params: a list is not served by the simulator, send one object")
    sampling = _native_sampling(wish.sampling_params or _NativeSampling())
    return Ask(
        model="",
        prompts=_checked_prompts(prompts, sampling.n),
        echoes=None,
        batched=batched,
        sampling=sampling,
        stream=wish.stream,
        rid=_rid(wish.rid),
        routing_key=wish.routing_key,
        return_ids=True,
    )


_Body = TypeVar("_Body")


def decode(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    """A JSON body of the decoder's type; raises `BadRequest`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error), by_schema=True) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"JSON decode error: {error}", by_schema=True) from error


def _encode_all(texts: list[str], context_length: int) -> tuple[array[int], ...]:
    for text in texts:
        # A token is at most four bytes, so a text of this length is refused without tokenising it.
        if len(text) > 4 * context_length:
            raise BadRequest(
                f"The input (at least {len(text) // 4} tokens) is longer than the model's context "
                f"length ({context_length} tokens)."
            )
    return tuple(encode(text) for text in texts)


def _common(wish: _Completion | _Chat) -> dict[str, Any]:
    options = wish.stream_options or _StreamOptions()
    return {
        "model": wish.model,
        "stream": wish.stream,
        "include_usage": bool(options.include_usage),
        "continuous_usage": bool(options.continuous_usage_stats),
        "rid": _rid(wish.rid),
        "return_ids": wish.return_token_ids,
    }


def _rid(rid: str | list[str] | None) -> str | None:
    if isinstance(rid, list):
        raise BadRequest("rid: a list is not served by the simulator, send one string")
    return rid or None


def _refuse_unserved(wish: _OpenAI, *, logprobs: bool, grammar: str | None) -> None:
    """Refuse fields whose effect the simulator does not implement."""
    if logprobs:
        raise BadRequest("logprobs: the simulator has no probabilities")
    kind = (wish.response_format or {}).get("type", "text")
    if kind != "text" or wish.regex or wish.ebnf or grammar:
        raise BadRequest("response_format: the simulator writes words, under no grammar")


def _prompts(prompt: str | list[str | int | list[int]]) -> tuple[list[str], list[array[int]]]:
    """Prompts as texts or as token ids: one of the two lists is empty."""
    if isinstance(prompt, str):
        return [prompt], []
    if prompt and all(isinstance(item, str) for item in prompt):
        return [item for item in prompt if isinstance(item, str)], []
    return [], list(_token_prompts("prompt", prompt))


def _token_prompts(field: str, prompt: list[Any]) -> list[array[int]]:
    """`[1, 2]` is one prompt, `[[1], [2]]` are two; anything mixed is refused."""
    if all(isinstance(item, list) for item in prompt):
        prompts = prompt
    elif all(isinstance(item, int) for item in prompt):
        prompts = [prompt]
    else:
        raise BadRequest(f"{field} mixes texts, token ids and lists", by_schema=True)
    if not all(are_tokens(ids) for ids in prompts):
        raise BadRequest(f"{field}: a token id is a whole number from 0 to {MAX_TOKEN_ID}")
    return [array("I", ids) for ids in prompts]


def _checked_prompts(prompts: tuple[array[int], ...], n: int) -> tuple[array[int], ...]:
    if not prompts or not all(prompts):
        raise BadRequest("Prompt cannot be empty")
    if len(prompts) * n > MAX_CHOICES:
        raise BadRequest(
            f"{len(prompts)} prompts with n={n}: at most {MAX_CHOICES} answers at once"
        )
    return prompts


def _echoes(texts: list[str], ids: list[array[int]]) -> tuple[str, ...]:
    return tuple(texts) if texts else tuple(tokens.decode(prompt) for prompt in ids)


def _native_sampling(wish: _NativeSampling) -> Sampling:
    if wish.json_schema or wish.regex or wish.ebnf:
        raise BadRequest("sampling_params: the simulator writes words, under no grammar")
    _check_ranges(wish)
    return _checked(
        Sampling(
            max_tokens=wish.max_new_tokens,
            min_tokens=wish.min_new_tokens or 0,
            ignore_eos=bool(wish.ignore_eos),
            stop=_stops(wish.stop),
            stop_token_ids=frozenset(t for t in wish.stop_token_ids or () if t is not None),
            keep_stop=bool(wish.no_stop_trim),
            n=1 if wish.n is None else wish.n,
        )
    )


def _sampling(wish: _OpenAI, *, max_tokens: int | None) -> Sampling:
    _check_ranges(wish)
    return _checked(
        Sampling(
            max_tokens=max_tokens,
            min_tokens=wish.min_tokens,
            ignore_eos=wish.ignore_eos,
            stop=_stops(wish.stop),
            stop_token_ids=frozenset(wish.stop_token_ids or ()),
            keep_stop=wish.no_stop_trim,
            n=wish.n,
        )
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"stop: at most {MAX_STOPS} strings, got {len(stops)}")
    return tuple(one for one in stops if one)


def _checked(sampling: Sampling) -> Sampling:
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise BadRequest(f"max_new_tokens must be at least 1, got {sampling.max_tokens}.")
    limit = sampling.max_tokens
    if sampling.min_tokens < 0 or (limit is not None and sampling.min_tokens > limit):
        raise BadRequest(
            f"min_new_tokens must be in [0, max_new_tokens({limit})], got {sampling.min_tokens}."
        )
    if not 1 <= sampling.n <= MAX_CHOICES:
        raise BadRequest(f"n must be from 1 to {MAX_CHOICES}, got {sampling.n}.")
    return sampling


_RANGES: Final = (
    # (field, least, greatest, whether the least itself is allowed), as SGLang checks them
    ("temperature", 0.0, float("inf"), True),
    ("top_p", 0.0, 1.0, False),
    ("min_p", 0.0, 1.0, True),
    ("frequency_penalty", -2.0, 2.0, True),
    ("presence_penalty", -2.0, 2.0, True),
    ("repetition_penalty", 0.0, 2.0, False),
)


def _check_ranges(wish: _OpenAI | _NativeSampling) -> None:
    for field, least, greatest, closed in _RANGES:
        value = getattr(wish, field)
        if value is None:
            continue
        if not (least < value <= greatest or (closed and value == least)):
            left = "[" if closed else "("
            raise BadRequest(f"{field} must be in {left}{least}, {greatest}], got {value}.")
    if wish.top_k is not None and wish.top_k < 1 and wish.top_k != -1:
        raise BadRequest(f"top_k must be -1 (disable) or at least 1, got {wish.top_k}.")
