"""Names that a client gives to media (vLLM's `uuid`). They are keys of the engine's cache of media, which all tenants share, so none is sent on."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from evenkeel_router.api.inference import Limits
from evenkeel_router.api.reading import Read, members_of

MEDIA_NAME: Final = "uuid"
_WITH_PARTS: Final = ("messages", "input", "query", "queries", "documents", "items", "data_1", "data_2", "text_1", "text_2")  # fmt: skip
"""Members below which parts can stand."""


def may_name_media(raw: bytes) -> bool:
    """Whether a part may have a name, in any spelling. Seldom true of one that has none."""
    return b"uuid" in raw or b"\\u00" in raw


def unnamed(read: Read[Any], limits: Limits, *, names_media: bool) -> Read[Any]:
    """A body as it was read, without names of media in its parts, unless the configuration allows them."""
    if not names_media or MEDIA_NAME in limits.allowed_fields:
        return read
    removed = (*read.removed, f"messages.{MEDIA_NAME}")
    return msgspec.structs.replace(read, body=_without_names(read.body), removed=removed)


def _without_names(body: bytes) -> bytes:
    members = members_of(body)
    for member in filter(members.__contains__, _WITH_PARTS):
        value = msgspec.json.decode(members[member])
        _clean(value)
        members[member] = Raw(msgspec.json.encode(value))
    return msgspec.json.encode(members)


def _clean(value: Any) -> None:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            content = one.get("content")
            for part in content if isinstance(content, list) else ():
                if isinstance(part, dict):
                    part.pop(MEDIA_NAME, None)
        elif isinstance(one, list):
            waiting.extend(one)
