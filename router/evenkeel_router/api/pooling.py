"""Requests for what a model makes of a whole prompt, without output tokens: embeddings, classes and other pooled vectors.

SGLang and vLLM take the prompts in several shapes: texts, token ids, conversations, and texts with media.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.contents import Contents, merged
from evenkeel_router.api.errors import invalid
from evenkeel_router.api.fields import CLASSIFY, EMBEDDINGS, NATIVE_CLASSIFY, POOLING
from evenkeel_router.api.inference import (
    Inference,
    Limits,
    adapter_of,
    check_model,
    input_only,
)
from evenkeel_router.api.media_names import unnamed
from evenkeel_router.api.prompt import (
    MAX_PROMPTS,
    Message,
    Prompt,
    prompt_of_input,
    prompt_of_messages,
    text_of,
    with_extras,
)
from evenkeel_router.api.reading import Read, Reader


class _Entry(msgspec.Struct):
    """An object in `input`: a message (vLLM), or a text with media (SGLang)."""

    role: str = ""


class _Given(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: str | list[str | int | list[int | _Entry] | _Entry] | None = None
    messages: list[Message | list[Message]] | None = None  # vLLM


class _Embeddings(_Given, kw_only=True):
    encoding_format: Raw | UnsetType = UNSET
    lora_path: str | list[str | None] | None = None


class _Pooling(_Given, kw_only=True):
    encoding_format: Raw | UnsetType = UNSET
    data: Raw | UnsetType = UNSET


class _Native(_Given, kw_only=True):
    """SGLang's own `/classify`."""

    text: str | list[str | list[str]] | None = None
    input_ids: list[int | list[int]] | None = None
    image_data: Raw | UnsetType = UNSET
    video_data: Raw | UnsetType = UNSET
    audio_data: Raw | UnsetType = UNSET
    input_embeds: Raw | UnsetType = UNSET


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


_EMBEDDINGS: Final = Reader(_Embeddings, EMBEDDINGS)
_CLASSIFY: Final = Reader(_Given, CLASSIFY)
_POOLING: Final = Reader(_Pooling, POOLING)
_NATIVE: Final = Reader(_Native, NATIVE_CLASSIFY)
_BINARY: Final = ('"bytes"', '"bytes_only"')
_LISTS: Final = msgspec.json.Decoder(_Lists)
_CONVERSATION: Final = msgspec.json.Decoder(_Conversation)
_MIXED: Final = msgspec.json.Decoder(_Mixed)


def embeddings(body: bytes, limits: Limits) -> Inference:
    """`/v1/embeddings`."""
    read = _EMBEDDINGS.read(body, limits.allowed_fields)
    adapter = adapter_of(read.fields.model, limits, read.fields.lora_path)
    inference = _inference(read, limits, _prompt(read.fields, read.body))
    binary = text_of(read.fields.encoding_format) in _BINARY
    if adapter is None and not binary:
        return inference
    return msgspec.structs.replace(inference, adapter=adapter, binary=binary)


def classify(body: bytes, limits: Limits) -> Inference:
    """`/v1/classify`."""
    read = _CLASSIFY.read(body, limits.allowed_fields)
    check_model(read.fields.model, limits)
    return _inference(read, limits, _prompt(read.fields, read.body))


def native_classify(body: bytes, limits: Limits) -> Inference:
    """`/classify`: vLLM's, or SGLang's own."""
    read = _NATIVE.read(body, limits.allowed_fields)
    check_model(read.fields.model, limits)
    return _inference(read, limits, _prompt(read.fields, read.body) or _native_prompt(read.fields))


def pooling(body: bytes, limits: Limits) -> Inference:
    """`/pooling`."""
    read = _POOLING.read(body, limits.allowed_fields)
    check_model(read.fields.model, limits)
    given = _prompt(read.fields, read.body)
    if given is None and read.fields.data is not UNSET:
        contents = Contents()
        text = contents.part(bytes(read.fields.data)).encode()
        given = Prompt(text, contents.text_bytes, None, media=contents.media())
    inference = _inference(read, limits, given)
    binary = text_of(read.fields.encoding_format) in _BINARY
    return msgspec.structs.replace(inference, binary=True) if binary else inference


def _inference(read: Read[Any], limits: Limits, given: Prompt | None) -> Inference:
    if given is None:
        raise invalid("input is required.", code="missing_required_parameter", param="input")
    return input_only(unnamed(read, limits, names_media=given.names_media), given)


def _prompt(fields: _Given, body: bytes) -> Prompt | None:
    """The prompts in `input` or `messages`; None if there are none."""
    given = fields.input
    if given is not None:
        if isinstance(given, list) and given:
            first = given[0]
            if isinstance(first, _Entry) or (isinstance(first, list) and _has_entries(first)):
                return _of_objects("input", given, body)
        return prompt_of_input(given, "input")  # type: ignore[arg-type]  # without entries
    if fields.messages is not None:
        return _of_objects("messages", fields.messages, body)
    return None


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


def _native_prompt(fields: _Native) -> Prompt | None:
    """What SGLang's own `/classify` takes."""
    if fields.text is not None:
        # A cross-encoder reads pairs.
        several = fields.text if isinstance(fields.text, list) else [fields.text]
        texts = [one if isinstance(one, str) else "\n".join(one) for one in several]
        given = prompt_of_input(texts, "text")
    elif fields.input_ids is not None:
        given = prompt_of_input(fields.input_ids, "input_ids")
    else:
        return None
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
        any(prompt.names_media for prompt in prompts),
    )
