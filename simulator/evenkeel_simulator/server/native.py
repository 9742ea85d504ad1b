"""SGLang's own `/generate`: its body, and its answers. Pure.

Every event of a stream repeats the whole text so far, as SGLang does by default.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from evenkeel_simulator.server import wire
from evenkeel_simulator.server.ask import Ask, checked_prompts, encode_all, one_rid, token_prompts
from evenkeel_simulator.server.bodies import BadRequest, decode
from evenkeel_simulator.server.completions import parse_schema
from evenkeel_simulator.server.conversation import json_writer
from evenkeel_simulator.server.sampling import RangedFields, Sampling, checked, stops
from evenkeel_simulator.server.served import FinishType, ServedRequest

DEFAULT_TOKENS: Final = 128  # without max_new_tokens


class _Sampling(RangedFields, kw_only=True):
    max_new_tokens: int | None = DEFAULT_TOKENS
    min_new_tokens: int | None = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int | None] | None = None
    ignore_eos: bool | None = False
    no_stop_trim: bool | None = False
    n: int | None = 1
    sampling_seed: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None


class _Native(msgspec.Struct, kw_only=True):
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: _Sampling | list[_Sampling] | None = None
    stream: bool = False
    rid: str | list[str] | None = None
    routing_key: str | None = None
    return_logprob: bool | list[bool] | None = None
    lora_path: str | None = None


_native: Final = msgspec.json.Decoder(_Native, strict=False)


def parse_generate(body: bytes, *, context_length: int) -> Ask:
    """Body of `/generate`; raises `BadRequest`."""
    fields = decode(_native, body)
    if fields.return_logprob not in (None, False):
        raise BadRequest(
            "return_logprob: the simulator reports probabilities on OpenAI endpoints only"
        )
    if fields.text is not None:
        batched = isinstance(fields.text, list)
        texts = fields.text if isinstance(fields.text, list) else [fields.text]
        prompts = encode_all(texts, context_length)
    elif fields.input_ids is not None:
        if not fields.input_ids:
            raise BadRequest("input_ids cannot be empty.")
        batched = isinstance(fields.input_ids[0], list)
        prompts = token_prompts("input_ids", fields.input_ids)
    else:
        raise BadRequest("Either text, input_ids or input_embeds should be provided.")
    if isinstance(fields.sampling_params, list):
        raise BadRequest("sampling_params: a list is not served by the simulator, send one object")
    params = fields.sampling_params or _Sampling()
    if params.regex or params.ebnf:
        raise BadRequest("regex and ebnf: the simulator writes words or JSON, by no other grammar")
    sampling = _sampling(params)
    return Ask(
        model="",
        prompts=checked_prompts(prompts, sampling.n),
        batched=batched,
        sampling=sampling,
        write=json_writer(parse_schema(params.json_schema)) if params.json_schema else None,
        stream=fields.stream,
        rid=one_rid(fields.rid),
        lora_path=fields.lora_path,
        routing_key=fields.routing_key,
    )


def _sampling(fields: _Sampling) -> Sampling:
    return checked(
        fields,
        Sampling(
            max_tokens=fields.max_new_tokens,
            min_tokens=fields.min_new_tokens or 0,
            ignore_eos=bool(fields.ignore_eos),
            stop=stops(fields.stop),
            stop_token_ids=frozenset(t for t in fields.stop_token_ids or () if t is not None),
            keep_stop=bool(fields.no_stop_trim),
            n=1 if fields.n is None else fields.n,
            seed=fields.sampling_seed,
        ),
    )


class Native:
    """Answers of `/generate`."""

    opens_early = True

    def __init__(self, ask: Ask, head: wire.Head) -> None:
        self._many = ask.batched or ask.sampling.n > 1
        self._texts: dict[int, str] = {}

    def body(self, requests: Sequence[ServedRequest]) -> bytes:
        answers = [self._answer(request, request.text()) for request in requests]
        return wire.encode(answers if self._many else answers[0])

    def news(self, request: ServedRequest, start: int) -> bytes:
        fresh = request.speech.text(start, request.output_tokens)
        text = self._texts[request.index] = self._texts.get(request.index, "") + fresh
        answer = self._answer(request, text)
        return wire.event(answer | {"index": request.index} if self._many else answer)

    def closing(self, requests: Sequence[ServedRequest]) -> bytes:
        return wire.DONE

    def _answer(self, request: ServedRequest, text: str) -> dict[str, Any]:
        ended = request.finish is not None
        e2e_s = time.monotonic() - request.received_s if ended else None
        return native_answer(request, text, e2e_s=e2e_s)


def native_answer(request: ServedRequest, text: str, *, e2e_s: float | None) -> dict[str, Any]:
    """One answer: `text` is all of it so far; `e2e_s` only once it ended."""
    meta: dict[str, Any] = {
        "id": request.id,
        "finish_reason": _finish(request),
        "prompt_tokens": request.input_tokens,
        "weight_version": wire.WEIGHT_VERSION,
        "num_retractions": request.retractions,
        "reasoning_tokens": 0,
        "completion_tokens": request.output_tokens,
        "cached_tokens": request.cached_tokens,
        "dp_rank": 0,
    }
    if e2e_s is not None:
        meta["e2e_latency"] = e2e_s
    ids = request.speech.ids(0, request.output_tokens)
    return {"text": text, "output_ids": ids, "meta_info": meta}


def _finish(request: ServedRequest) -> dict[str, Any] | None:
    finish = request.finish
    if finish is None:
        return None
    if finish.type is FinishType.LENGTH:
        return {"type": "length", "length": request.output_tokens}
    if finish.type is FinishType.STOP:
        return {"type": "stop", "matched": finish.matched}
    return {"type": "abort", "message": finish.message}
