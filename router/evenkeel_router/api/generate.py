"""SGLang's `/generate`."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from evenkeel_router.api.errors import invalid
from evenkeel_router.api.fields import GENERATE, NESTED
from evenkeel_router.api.inference import (
    Inference,
    Limits,
    adapter_of,
    check_choices,
    check_output,
)
from evenkeel_router.api.prompt import MAX_PROMPTS, prompt_of_input, with_extras
from evenkeel_router.api.reading import Reader, closed

DEFAULT_GENERATED: Final = 128  # SGLang's default `max_new_tokens`


class _Sampling(msgspec.Struct):
    max_new_tokens: int | None = None
    n: int | None = None
    beam_width: int | None = None


class _Generate(msgspec.Struct, kw_only=True):
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: _Sampling | list[_Sampling] | None = None
    stream: bool | None = None
    lora_path: str | list[str | None] | None = None
    image_data: Raw | UnsetType = UNSET
    video_data: Raw | UnsetType = UNSET
    audio_data: Raw | UnsetType = UNSET
    input_embeds: Raw | UnsetType = UNSET


_CLOSED_SAMPLING: Final = closed(_Sampling, NESTED["sampling_params"])
_GENERATE: Final = Reader(
    _Generate,
    GENERATE,
    sampling_params=_CLOSED_SAMPLING | list[_CLOSED_SAMPLING],  # type: ignore[valid-type]
)


def generate(body: bytes, limits: Limits) -> Inference:
    """`/generate`."""
    read = _GENERATE.read(body, limits.allowed_fields)
    fields, body = read.fields, read.body
    given = fields.text if fields.text is not None else fields.input_ids
    if given is None:
        raise invalid(
            "text or input_ids is required.", code="missing_required_parameter", param="text"
        )
    text = prompt_of_input(given, "text" if given is fields.text else "input_ids")
    media = {
        "image": fields.image_data,
        "video": fields.video_data,
        "audio": fields.audio_data,
        "embeds": fields.input_embeds,
    }
    if any(one is not UNSET for one in media.values()):
        text = with_extras(text, media)
    sampling = fields.sampling_params
    several = sampling if isinstance(sampling, list) else [sampling] if sampling else []
    if len(several) > MAX_PROMPTS:
        message = f"sampling_params has {len(several)} entries; send at most {MAX_PROMPTS}."
        raise invalid(message, code="invalid_value", param="sampling_params")
    for one in several:
        check_output("sampling_params.max_new_tokens", one.max_new_tokens, limits)
        check_choices("sampling_params.n", one.n)
        check_choices("sampling_params.beam_width", one.beam_width)
    # One entry for each prompt, or one for all of them.
    each = several if isinstance(sampling, list) else (several or [_Sampling()]) * text.prompts
    return Inference(
        body=body,
        text=text.first,
        prompt_bytes=text.size_bytes,
        prompt_tokens=text.tokens,
        max_output_tokens=sum(map(_bound, each)),
        most_output_tokens=sum(_most(one, limits) for one in each),
        media=text.media,
        sequences=max(text.prompts, sum(map(_sequences, each))),
        prompts=text.prompts,
        stream=bool(fields.stream),
        stripped=read.removed,
        adapter=adapter_of(None, limits, fields.lora_path),
    )


def _sequences(sampling: _Sampling) -> int:
    """Rows of the engine's batch: a search over beams has one for each, whatever it returns."""
    return max(sampling.n or 1, sampling.beam_width or 1)


def _bound(sampling: _Sampling) -> int:
    tokens = sampling.max_new_tokens
    return (DEFAULT_GENERATED if tokens is None else tokens) * _sequences(sampling)


def _most(sampling: _Sampling, limits: Limits) -> int:
    tokens = sampling.max_new_tokens
    return (limits.max_output_tokens if tokens is None else tokens) * _sequences(sampling)
