"""Requests for what a model makes of a whole prompt, without output tokens: embeddings, classes and other pooled vectors.

SGLang and vLLM take the prompts in several shapes: texts, token ids, conversations, and texts with media.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.contents import Contents, merged
from evenkeel_router.api.errors import invalid
from evenkeel_router.api.inference import (
    Guarded,
    Inference,
    Limits,
    adapter_of,
    check_model,
    input_only,
)
from evenkeel_router.api.prompt import (
    MAX_PROMPTS,
    Message,
    Prompt,
    prompt_of_input,
    prompt_of_messages,
    with_extras,
)


class _Entry(msgspec.Struct):
    """An object in `input`: a message (vLLM), or a text with media (SGLang)."""

    role: str = ""


class _Pooled(Guarded, kw_only=True):
    """All members that give prompts; one of them is given."""

    model: str | None = None
    input: str | list[str | int | list[int | _Entry] | _Entry] | None = None
    # vLLM
    messages: list[Message | list[Message]] | None = None
    data: Raw | UnsetType = UNSET
    # SGLang's own endpoints
    text: str | list[str | list[str]] | None = None
    input_ids: list[int | list[int]] | None = None
    image_data: Raw | UnsetType = UNSET
    video_data: Raw | UnsetType = UNSET
    audio_data: Raw | UnsetType = UNSET
    input_embeds: Raw | UnsetType = UNSET


class _Embeddings(_Pooled, kw_only=True):
    lora_path: str | list[str | None] | None = None


class _Lists(msgspec.Struct):
    """The lists of a request as they were sent."""

    input: list[Raw] = []
    messages: list[Raw] = []


class _Conversation(msgspec.Struct):
    messages: list[Message]


class _Mixed(msgspec.Struct):
    """SGLang's text with media."""

    text: str | None = None
    image: Raw | UnsetType = UNSET
    video: Raw | UnsetType = UNSET
    audio: Raw | UnsetType = UNSET


_EMBEDDINGS: Final = msgspec.json.Decoder(_Embeddings)
_POOLED: Final = msgspec.json.Decoder(_Pooled)
_LISTS: Final = msgspec.json.Decoder(_Lists)
_CONVERSATION: Final = msgspec.json.Decoder(_Conversation)
_MIXED: Final = msgspec.json.Decoder(_Mixed)


def embeddings(body: bytes, limits: Limits) -> Inference:
    """`/v1/embeddings`."""
    fields = _EMBEDDINGS.decode(body)
    adapter = adapter_of(fields.model, limits, fields.lora_path)
    inference = input_only(body, fields, _prompt(fields, body))
    return inference if adapter is None else msgspec.structs.replace(inference, adapter=adapter)


def pooled(body: bytes, limits: Limits) -> Inference:
    """`/classify`, `/pooling` and the like."""
    fields = _POOLED.decode(body)
    check_model(fields.model, limits)
    return input_only(body, fields, _prompt(fields, body))


def _prompt(fields: _Pooled, body: bytes) -> Prompt:
    """The prompts of a request; raises `Refusal` if it has none."""
    given = fields.input
    if given is not None:
        if isinstance(given, list) and given:
            first = given[0]
            if isinstance(first, _Entry) or (isinstance(first, list) and _has_entries(first)):
                return _of_objects("input", given, body)
        return prompt_of_input(given, "input")  # type: ignore[arg-type]  # without entries
    if fields.messages is not None:
        return _of_objects("messages", fields.messages, body)
    if fields.text is not None or fields.input_ids is not None:
        return _native(fields)
    if fields.data is not UNSET:
        contents = Contents()
        text = contents.part(bytes(fields.data)).encode()
        return Prompt(text, contents.text_bytes, None, media=contents.media())
    raise invalid("input is required.", code="missing_required_parameter", param="input")


def _has_entries(values: Sequence[object]) -> bool:
    return bool(values) and isinstance(values[0], _Entry)


def _of_objects(field: str, given: Sequence[object], body: bytes) -> Prompt:
    """One conversation, a list of them, or a list of texts with media."""
    if not given:
        raise invalid(f"{field} is empty.", code="invalid_value", param=field)
    lists = _LISTS.decode(body)
    raw = lists.input if field == "input" else lists.messages
    if isinstance(given[0], Message) or (isinstance(given[0], _Entry) and given[0].role):
        return _conversation(b"[%b]" % b",".join(map(bytes, raw)))
    if len(raw) > MAX_PROMPTS:
        message = f"{field} has {len(raw)} prompts; send at most {MAX_PROMPTS} at a time."
        raise invalid(message, code="invalid_value", param=field)
    read = _mixed if isinstance(given[0], _Entry) else _conversation
    return combined([read(bytes(one)) for one in raw])


def _conversation(messages: bytes) -> Prompt:
    body = b'{"messages":%b}' % messages
    return prompt_of_messages(_CONVERSATION.decode(body).messages, body)


def _mixed(given: bytes) -> Prompt:
    one = _MIXED.decode(given)
    text = (one.text or "").encode()
    media = {"image": one.image, "video": one.video, "audio": one.audio}
    return with_extras(Prompt(text, len(text), None), media)


def _native(fields: _Pooled) -> Prompt:
    """What SGLang's `/classify` and `/encode` take."""
    if fields.text is None:
        given = prompt_of_input(fields.input_ids or [], "input_ids")
    elif isinstance(fields.text, str):
        given = prompt_of_input(fields.text, "text")
    else:  # a cross-encoder reads pairs
        texts = [one if isinstance(one, str) else "\n".join(one) for one in fields.text]
        given = prompt_of_input(texts, "text")
    media = {
        "image": fields.image_data,
        "video": fields.video_data,
        "audio": fields.audio_data,
        "embeds": fields.input_embeds,
    }
    if any(one is not UNSET for one in media.values()):
        return with_extras(given, media)
    return given


def combined(prompts: Sequence[Prompt]) -> Prompt:
    """Several prompts as those of one request."""
    return Prompt(
        prompts[0].first,
        sum(prompt.size_bytes for prompt in prompts),
        None,
        sum(prompt.prompts for prompt in prompts),
        merged([prompt.media for prompt in prompts]),
    )
