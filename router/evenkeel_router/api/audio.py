"""OpenAI's audio transcriptions: a form (multipart/form-data, RFC 7578) with a file, passed on as bytes.

A model hears audio as tokens of a fixed duration. The input is charged by the duration that the engine reports, else by
the bytes of the body: compressed speech of usual quality has about 16 kB/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from evenkeel_contract.names import GUARDED_FIELDS

from evenkeel_router.api.errors import invalid
from evenkeel_router.api.inference import Inference, Limits, check_model

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


def transcription(body: bytes, limits: Limits, content_type: str) -> Inference:
    """`/v1/audio/transcriptions`; raises `Refusal`."""
    found = _BOUNDARY.match(content_type)
    if found is None:
        message = (
            "The body must be a form (multipart/form-data) with a boundary in its content type."
        )
        raise invalid(message, code="invalid_content_type", param="content-type")
    boundary = (found[1] or found[2]).encode("ascii")
    fields: dict[bytes, bytes | None] = {}
    for name, value in _parts(body, boundary):
        fields[name] = value
        if len(fields) > MAX_FIELDS:
            message = f"The form has more than {MAX_FIELDS} fields."
            raise invalid(message, code="invalid_value")
    _check(fields, limits)
    return Inference(
        body=body,
        text=b"",
        prompt_bytes=0,
        prompt_tokens=1 + len(body) // BYTES_PER_TOKEN,
        max_output_tokens=None,
        most_output_tokens=limits.max_output_tokens,
        stream=(fields.get(b"stream") or b"").strip().lower() in _TRUE,
        content_type=b'multipart/form-data; boundary="%b"' % boundary,
    )


def _check(fields: dict[bytes, bytes | None], limits: Limits) -> None:
    if b"file" not in fields:
        raise invalid("file is required.", code="missing_required_parameter", param="file")
    model = fields.get(b"model")
    check_model(None if model is None else model.decode("utf-8", "replace"), limits)
    for field in fields:
        name = field.decode("utf-8", "replace")
        if name in GUARDED_FIELDS:
            message = f"{name[:40]} may not be set by a client; leave it out."
            raise invalid(message, code="invalid_value", param=name[:40])


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Name and value of each field; the value of a file is None. Raises `Refusal`."""
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
        yield name[1], None if _FILE.search(head) else body[head_ends + 4 : ends]
        at = ends + len(mark)


def _invalid() -> Exception:
    return invalid("The form cannot be read: a part has no name or no end.", code="invalid_form")
