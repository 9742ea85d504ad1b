"""What the simulated replica reads of drawn bodies, writes by drawn schemas, and figures of drawn runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.chat import parse_chat
from evenkeel_simulator.server.completions import parse_completion
from evenkeel_simulator.server.messages import parse_messages
from evenkeel_simulator.server.native import parse_generate
from evenkeel_simulator.server.structured import SchemaError, write_json
from evenkeel_simulator.traffic.records import Record
from evenkeel_simulator.traffic.summary import summarise

from tests.support.decisions import text

RANGED: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, -0.1, 2.0),
    "top_p": (0.0, 0.01, 1.0, 1.1),
    "min_p": (0.0, 1.0, 1.1, -0.1),
    "frequency_penalty": (-2.0, -2.1, 2.0, 2.1),
    "presence_penalty": (-2.0, -2.1, 2.0, 2.1),
    "repetition_penalty": (0.0, 0.1, 2.0, 2.1),
    "top_k": (-1, 0, 1, -2),
}
SAMPLED: dict[str, tuple[Any, ...]] = {
    **RANGED,
    "max_tokens": (1, 0, -1, 50, 2000),
    "max_completion_tokens": (1, 0, 30),
    "max_new_tokens": (1, 0, 30, 2000),
    "min_tokens": (0, 1, 60, -1),
    "min_new_tokens": (0, 1, 200),
    "n": (1, 2, 0, 128, 129),
    "stop": (None, "x", ["x", ""], ["y"] * 32, ["y"] * 33),
    "ignore_eos": (True, False),
    "seed": (None, 7),
    "stream": (True, False),
    "echo": (True,),
    "no_stop_trim": (True,),
    "logprobs": (None, 1, 0),
    "stream_options": ({"include_usage": True}, {"include_usage": False}),
    "model": ("m", "m:adapter", 3),
    "response_format": (
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}},
    ),
}
PROMPTS: dict[str, tuple[Any, ...]] = {
    "prompt": ("hello", ["a", "b"], [1, 2], [[1], [2, 3]], [], "x" * 9000),
    "messages": (
        [{"role": "user", "content": "hi"}],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "image_url": {"url": "u"}},
                ],
            }
        ],
        [],
    ),
    "text": ("hello", ["a", "b"], ""),
}
Parse = Callable[..., Ask]
READERS: dict[str, tuple[Parse, str]] = {
    "completions": (parse_completion, "prompt"),
    "chat": (parse_chat, "messages"),
    "messages": (parse_messages, "messages"),
    "generate": (parse_generate, "text"),
}


def _read(parse: Parse, body: dict[str, Any]) -> str:
    try:
        ask = parse(json.dumps(body).encode(), context_length=1000)
    except BadRequest as error:
        return f"refused: {error}"
    sizes = [len(one) for one in ask.prompts]
    return f"{sizes} {text(ask.sampling)} stream={ask.stream} model={ask.model}"


def bodies() -> Iterator[str]:
    """Bodies of each API: sizes of prompts and sampling parameters, or the refusal."""
    for name, (parse, needed) in READERS.items():
        for seed in range(45):
            rng = Random(seed)
            body = {needed: rng.choice(PROMPTS[needed][: rng.choice((1, 6))])}
            if name == "messages":
                body["max_tokens"] = 20
            chosen = {key: rng.choice(SAMPLED[key]) for key in rng.sample(list(SAMPLED), 3)}
            body |= (
                {"sampling_params": chosen, "stream": rng.choice((True, False))}
                if name == "generate"
                else chosen
            )
            shown = json.dumps(body)
            yield f"{name} {shown if len(shown) < 200 else shown[:200] + '…'} => {_read(parse, body)}"
    for field, values in RANGED.items():
        for value in values:
            yield f"{field}={value} => {_read(parse_completion, {'prompt': 'x', field: value})}"


NODE = {
    "type": "object",
    "properties": {
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        "value": {"type": "number"},
    },
    "required": ["children"],
}
SCHEMAS: tuple[Any, ...] = (
    {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    {
        "type": "array",
        "items": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "array", "items": {"type": "array"}}},
        },
    },
    {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 3},
        "uniqueItems": True,
        "minItems": 2,
        "maxItems": 4,
    },
    {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False, "minItems": 1},
    {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "boolean"}},
        "additionalProperties": {"type": "null"},
        "minProperties": 2,
    },
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]},
    {
        "anyOf": [
            {"type": "string", "pattern": "^[a-c]{2,4}$"},
            {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 2},
        ]
    },
    {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    {"type": ["array", "integer"], "contains": {"type": "integer"}, "maximum": 9},
    {"type": "array", "minItems": 5, "maxItems": 4},
    {"type": "integer", "minimum": 5, "exclusiveMaximum": 6},
    True,
)


def written() -> Iterator[str]:
    """JSON by schemas, for each of a few seeds."""
    for number, schema in enumerate(SCHEMAS):
        for seed in range(12):
            try:
                answer = write_json(schema, Random(seed))
            except SchemaError as error:
                answer = f"refused: {error}"
            shown = str(answer)
            yield f"{number} {seed} => {shown if len(shown) < 300 else f'{shown[:300]}… {len(shown)}'}"


def _record(rng: Random, n: int) -> Record:
    arrival_s = rng.choice((0.0, 1.0, 2.5, 6.0))
    status = rng.choice(("finished", "finished", "finished", "unfinished", "rejected", "refused"))
    admitted_s = arrival_s + rng.choice((0.0, 0.5, 3.0))
    first_s = admitted_s + rng.choice((0.1, 1.0))
    done = status == "finished"
    return Record(
        id=str(n),
        program=str(n),
        client=f"ns/{rng.choice('ab')}/{rng.choice('xy')}",
        replica=rng.choice((0, 1)),
        status=status,
        arrival_s=arrival_s,
        admitted_s=admitted_s if done or status == "unfinished" else None,
        first_token_s=first_s if done else None,
        finished_s=first_s + rng.choice((0.0, 2.0)) if done else None,
        input_tokens=rng.choice((10, 500)),
        cached_tokens=rng.choice((0, 8)),
        extend_tokens=rng.choice((2, 490)),
        output_tokens=rng.choice((0, 1, 30)) if done else 0,
        retractions=rng.choice((0, 1)),
    )


def runs() -> Iterator[str]:
    """The figures of runs, from drawn records."""
    for seed in range(30):
        rng = Random(seed)
        records = [_record(rng, n) for n in range(rng.choice((0, 1, 5, 20)))]
        yield f"{seed}: {text(summarise(records, rng.choice((9.0, 12.0)), duration_s=rng.choice((0.0, 10.0))))}"


TABLES = {"simulator-bodies": bodies, "simulator-written": written, "simulator-runs": runs}
