"""One conversation of several turns over each API, and the cached tokens that the engine reports for each turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import httpx
from evenkeel_router.app import Router

OPENING: Final = "You keep a ship on an even keel, whatever the wind and the waves are like. " * 8
QUESTIONS: Final = (OPENING + "How?", "And with less ballast?", "And at night?", "And in a storm?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """How an API carries a conversation."""

    path: str
    turns: str
    """The field of the body that holds the turns."""
    limit: str
    """The field that limits the output."""
    text: Callable[[Any], str]
    """The text of an answer."""
    tokens: Callable[[Any], tuple[int, int]]
    """Input tokens and cached tokens of a usage; the first include the second."""


def _openai(usage: Any) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def _anthropic(usage: Any) -> tuple[int, int]:
    cached = usage.get("cache_read_input_tokens") or 0
    return usage["input_tokens"] + cached, cached


def _responses(usage: Any) -> tuple[int, int]:
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


APIS: Final[Mapping[str, Api]] = {
    "chat completions": Api(
        path="/v1/chat/completions",
        turns="messages",
        limit="max_tokens",
        text=lambda made: made["choices"][0]["message"]["content"],
        tokens=_openai,
    ),
    "messages": Api(
        path="/v1/messages",
        turns="messages",
        limit="max_tokens",
        text=lambda made: "".join(one["text"] for one in made["content"]),
        tokens=_anthropic,
    ),
    "responses": Api(
        path="/v1/responses",
        turns="input",
        limit="max_output_tokens",
        text=lambda made: "".join(
            part["text"]
            for item in made["output"]
            if item["type"] == "message"
            for part in item["content"]
        ),
        tokens=_responses,
    ),
}


async def converse(
    client: httpx.AsyncClient, api: Api, model: str, *, answer: str | None = None
) -> list[tuple[int, int]]:
    """Input and cached tokens of each turn. Each turn repeats the questions and answers before it.

    `answer`: repeated instead of the model's own answers.
    """
    turns: list[dict[str, str]] = []
    found = []
    for question in QUESTIONS:
        turns.append({"role": "user", "content": question})
        body = {"model": model, api.turns: turns, api.limit: 12, "temperature": 0}
        response = await client.post(api.path, json=body)
        assert response.status_code == 200, response.text
        made = response.json()
        turns.append({"role": "assistant", "content": answer or api.text(made)})
        found.append(api.tokens(made["usage"]))
    return found


Found = tuple[list[tuple[int, int]], dict[Any, tuple[int, int]]]
"""(input and cached tokens of each turn; predicted and reported cached tokens by how they were predicted)."""


def predictions_of(router: Router) -> dict[Any, tuple[int, int]]:
    """Cached tokens that the router predicted and the engine reported. Every prompt was tokenised."""
    assert not router.rooms.prefixes.untokenised.counts
    return {
        how: (one.predicted_tokens, one.reported_tokens)
        for how, one in router.rooms.totals.predictions.items()
    }


def assert_alike(found: Mapping[str, Found], page_tokens: int) -> tuple[int, int]:
    """Every API hits as chat completions do, each turn all of the one before but for two pages. Returns (predicted, reported)."""
    chat = found["chat completions"]
    assert found == dict.fromkeys(APIS, chat)
    turns, predictions = chat
    for (before, _), (_, cached) in pairwise(turns):
        assert cached > before - 2 * page_tokens
    [(predicted, reported)] = [one for one in predictions.values() if any(one)]
    assert reported == sum(cached for _, cached in turns)
    assert 0 < predicted <= reported
    return predicted, reported
