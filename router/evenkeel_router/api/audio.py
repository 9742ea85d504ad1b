"""OpenAI's audio transcriptions and translations: a form (multipart/form-data, RFC 7578) with a file, passed on as bytes.

Fields that are not listed (`fields`) are cut out.

A model hears audio as tokens of a fixed duration. The input is charged by the duration that the engine reports, else by
the bytes of the body: compressed speech of usual quality has about 16 kB/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.api.fields import TRANSCRIPTIONS, TRANSLATIONS
from evenkeel_router.api.inference import Inference, Limits, check_choices, check_model

TOKENS_PER_S: Final = 50
"""Positions per second of audio, as Whisper's encoder has them (Radford et al., 2022, section 2.2)."""
BYTES_PER_TOKEN: Final = 320
"""Bytes of an audio file that count as one token: compressed speech has about 16,000 bytes per second (128 kbit/s)."""
MAX_FIELDS: Final = 64
MAX_PART_HEAD_BYTES: Final = 4096
"""Head of one field: a name of a file has 255 characters at most, percent-encoded 3060 bytes."""

_BOUNDARY: Final = re.compile(  # RFC 2046, section 5.1.1
    r"""multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([\w'()+,\-./:=? ]{1,70})"|([\w'()+\-./]{1,70}))\s*(?:;|$)""",
    re.IGNORECASE | re.ASCII,
)
# From the beginning of a line, or a line of many such names would be searched once for each.
_LINES: Final = re.IGNORECASE | re.MULTILINE
_NAME: Final = re.compile(rb'^content-disposition:[^\r\n]*?\bname="([^"\r\n]*)"', _LINES)
_FILE: Final = re.compile(rb"^content-disposition:[^\r\n]*?\bfilename\*?=", _LINES)
_TRUE: Final = frozenset({b"true", b"1", b"on", b"yes", b"t", b"y"})  # as FastAPI reads a form


class _Part(NamedTuple):
    """One field of a form."""

    name: str
    value: bytes | None
    """The value as bytes; None: it is a file."""
    start: int
    """Where the field begins in the body, behind its boundary."""
    end: int
    """Where the next one begins."""


def transcription(body: bytes, limits: Limits, content_type: str) -> Inference:
    """`/v1/audio/transcriptions`; raises `Refusal`."""
    return _heard(body, limits, content_type, TRANSCRIPTIONS)


def translation(body: bytes, limits: Limits, content_type: str) -> Inference:
    """`/v1/audio/translations`; raises `Refusal`."""
    return _heard(body, limits, content_type, TRANSLATIONS)


def _heard(body: bytes, limits: Limits, content_type: str, listed: frozenset[str]) -> Inference:
    boundary, parts = _read(body, content_type)
    fields = {part.name: part.value for part in parts}
    _check(fields, limits)
    unlisted = [
        part for part in parts if part.name not in listed and part.name not in limits.allowed_fields
    ]
    beams = _beams(fields)
    return Inference(
        body=_without(body, unlisted) if unlisted else body,
        text=b"",
        prompt_bytes=0,
        prompt_tokens=1 + len(body) // BYTES_PER_TOKEN,
        max_output_tokens=None,
        most_output_tokens=limits.max_output_tokens * beams,
        sequences=beams,
        stream=(fields.get("stream") or b"").strip().lower() in _TRUE,
        stripped=tuple(dict.fromkeys(part.name for part in unlisted)),
        content_type=b'multipart/form-data; boundary="%b"' % boundary,
    )


def _read(body: bytes, content_type: str) -> tuple[bytes, list[_Part]]:
    """The boundary of a form, and its fields; raises `Refusal`."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        message = (
            "The body must be a form (multipart/form-data) with a boundary in its content type."
        )
        raise Refusal(
            Outcome.INVALID_REQUEST,
            message,
            code="invalid_content_type",
            param="content-type",
            status=415,
            more=[("accept", "multipart/form-data")],
        )
    boundary = (found[1] or found[2]).encode("ascii")
    parts: list[_Part] = []
    for part in _parts(body, boundary):
        parts.append(part)
        if len(parts) > MAX_FIELDS:
            message = f"The form has more than {MAX_FIELDS} fields."
            raise invalid(message, code="invalid_value")
    return boundary, parts


def model_of_form(body: bytes, content_type: str) -> str | None:
    """The model that a form names; raises `Refusal`."""
    _, parts = _read(body, content_type)
    values = [part.value for part in parts if part.name == "model"]
    return values[-1].decode("utf-8", "replace") if values and values[-1] is not None else None


def with_model_in_form(body: bytes, content_type: str, model: str) -> bytes:
    """The form with another model; raises `Refusal`."""
    boundary, parts = _read(body, content_type)
    head = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b' % model.encode()
    named = [part for part in parts if part.name == "model"]
    first = body[: named[0].start]
    rest = _without(body, named)[len(first) :]
    return b"%b%b\r\n--%b%b" % (first, head, boundary, rest)


def _without(body: bytes, unlisted: list[_Part]) -> bytes:
    pieces, at = [], 0
    for part in unlisted:
        pieces.append(body[at : part.start])
        at = part.end
    return b"".join((*pieces, body[at:]))


def _beams(fields: dict[str, bytes | None]) -> int:
    """Sequences that the engine computes (vLLM's search over beams); raises `Refusal`."""
    given = (fields.get("n") or b"1").strip()
    if not given.isdigit():
        return 1  # the engine says what is wrong with it
    beams = int(given[:9])
    check_choices("n", beams)
    return beams


def _check(fields: dict[str, bytes | None], limits: Limits) -> None:
    if "file" not in fields:
        raise invalid("file is required.", code="missing_required_parameter", param="file")
    model = fields.get("model")
    check_model(None if model is None else model.decode("utf-8", "replace"), limits)


def _parts(body: bytes, boundary: bytes) -> Iterator[_Part]:
    """Each field; raises `Refusal`."""
    mark = b"\r\n--" + boundary
    # The first boundary may stand at the very beginning.
    at = 0 if body.startswith(mark[2:]) else body.find(mark) + 2
    if at == 1:
        raise _invalid()
    at += len(mark) - 2
    while body[at : at + 2] != b"--":
        head_ends, ends = body.find(b"\r\n\r\n", at), body.find(mark, at)
        if ends < 0 or not at <= head_ends < ends:
            raise _invalid()
        if head_ends - at > MAX_PART_HEAD_BYTES:
            raise _invalid()
        head = body[at:head_ends]
        name = _NAME.search(head)
        if name is None:
            raise _invalid()
        value = None if _FILE.search(head) else body[head_ends + 4 : ends]
        yield _Part(name[1].decode("utf-8", "replace"), value, at, ends + len(mark))
        at = ends + len(mark)


def _invalid() -> Exception:
    return invalid("The form cannot be read: a part has no name or no end.", code="invalid_form")
