"""The simulator's token ids: which numbers are valid, and their text. The id *is* the text's bytes.

`evenkeel_contract.simulatedprompt` turns text into ids, since a router in tokens mode does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

MAX_TOKEN_ID: Final = 2**32 - 1
END_TOKEN: Final = 2
"""Ends an answer (the control character STX, which prompts do not contain); decodes to an empty text."""


def decode(ids: Iterable[int]) -> str:
    """The text of token ids; invalid UTF-8 becomes U+FFFD. Inverse of `encode` except for NUL bytes."""
    data = b"".join(_bytes_of(token) for token in ids if token != END_TOKEN)
    return data.decode(errors="replace")


def are_tokens(ids: Sequence[object]) -> bool:
    """Whether every item can be a token id."""
    return all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in ids)


def _bytes_of(token: int) -> bytes:
    return token.to_bytes(4, "little").rstrip(b"\0") or b"\0"
