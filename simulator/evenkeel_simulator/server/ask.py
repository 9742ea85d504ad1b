"""One HTTP request as all endpoints pass it on: prompts, sampling parameters, and what its answer must be."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.simulatedprompt import encode

from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.sampling import MAX_CHOICES, Sampling
from evenkeel_simulator.server.speech import WriteAnswer
from evenkeel_simulator.server.tokens import MAX_TOKEN_ID, are_tokens

MAX_TOP_LOGPROBS: Final = 20  # OpenAI's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One HTTP request, parsed."""

    model: str
    prompts: tuple[array[int], ...]
    """Token ids, at least one prompt; choices are numbered prompt by prompt."""
    sampling: Sampling
    stream: bool = False
    echoes: tuple[str, ...] | None = None
    """What goes before each prompt's answer (`echo`), None for nothing."""
    batched: bool = False
    """The body held a list of prompts."""
    write: WriteAnswer | None = None
    """Writes an answer by schema or tool calls; None: the answer is words."""
    generates: bool = True
    """Whether tokens are generated. False: only the prompt is computed (embeddings, scores)."""
    top_logprobs: int | None = None
    """How many alternatives to report for each token; None: no probabilities at all."""
    include_usage: bool = False
    continuous_usage: bool = False
    rid: str | None = None
    """The request's own id (`/generate` and the OpenAI bodies); None: one is made."""
    lora_path: str | None = None
    """The adapter that the body names beside the model."""
    routing_key: str | None = None
    """The client key of `/generate`. None on other endpoints, where it is a header."""


def encode_all(texts: Sequence[str], context_length: int) -> tuple[array[int], ...]:
    """Token ids of each text. Raises `BadRequest` for one that no context holds."""
    for text in texts:
        # A token is at most four bytes, so a text of this length is refused without tokenising it.
        if len(text) > 4 * context_length:
            raise BadRequest(
                f"The input (at least {len(text) // 4} tokens) is longer than the model's context "
                f"length ({context_length} tokens)."
            )
    return tuple(encode(text) for text in texts)


def token_prompts(field: str, prompt: Sequence[Any]) -> tuple[array[int], ...]:
    """`[1, 2]` is one prompt, `[[1], [2]]` are two; anything mixed is refused."""
    if all(isinstance(item, list) for item in prompt):
        prompts = list(prompt)
    elif all(isinstance(item, int) for item in prompt):
        prompts = [list(prompt)]
    else:
        raise BadRequest(f"{field} mixes texts, token ids and lists", by_schema=True)
    if not all(are_tokens(ids) for ids in prompts):
        raise BadRequest(f"{field}: a token id is a whole number from 0 to {MAX_TOKEN_ID}")
    return tuple(array("I", ids) for ids in prompts)


def texts_or_tokens(
    field: str, given: str | Sequence[Any], context_length: int
) -> tuple[tuple[array[int], ...], Sequence[str]]:
    """Token ids of each prompt, and their texts (none where the body holds token ids)."""
    if isinstance(given, str):
        given = [given]
    if given and all(isinstance(item, str) for item in given):
        return encode_all(given, context_length), given
    return token_prompts(field, given), ()


def checked_prompts(prompts: tuple[array[int], ...], n: int = 1) -> tuple[array[int], ...]:
    """`prompts` themselves. Raises `BadRequest` for none, an empty one, or too many answers."""
    if not prompts or not all(prompts):
        raise BadRequest("Prompt cannot be empty")
    if len(prompts) * n > MAX_CHOICES:
        raise BadRequest(
            f"{len(prompts)} prompts with n={n}: at most {MAX_CHOICES} answers at once"
        )
    return prompts


def one_rid(rid: str | list[str] | None) -> str | None:
    """The id that a body gives its request. Raises `BadRequest` for a list."""
    if isinstance(rid, list):
        raise BadRequest("rid: a list is not served by the simulator, send one string")
    return rid or None


def checked_top(number: int, field: str) -> int:
    """`number` itself. Raises `BadRequest` if so many alternatives cannot be reported."""
    if not 0 <= number <= MAX_TOP_LOGPROBS:
        raise BadRequest(f"{field} must be from 0 to {MAX_TOP_LOGPROBS}, got {number}.")
    return number
