"""The simulator's tokenizer: at most four bytes a token, and the id *is* the bytes.

Place in the flow: body → prompt text → **token ids** → pages → engine. A token is a short piece of text cut
by a fixed rule (below); its id is the piece read as a little-endian number, so ids fit 32 bits and decode
without a vocabulary. English comes to about three bytes a token.

The surprising thing: pieces begin anew at every blank before a letter, whatever stands in front of it. So
`encode(a + b) == encode(a) + encode(b)` whenever `b` begins with a blank and a letter and `a` does not end in
a blank: a conversation whose next turn repeats prompt and answer extends the cached prefix exactly, as
byte-level BPE nearly always does.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

MAX_TOKEN_ID: Final = 2**32 - 1
END_TOKEN: Final = 2
"""Ends an answer (the control character STX, which prompts do not hold); decodes to nothing."""

_PIECE: Final = re.compile(
    rb" [A-Za-z]{1,3}"  # a blank and the first letters of the word after it
    rb"|[A-Za-z]{1,4}"
    rb"|[0-9]{1,3}"
    rb"|[\xc0-\xff][\x80-\xbf]{1,3}"  # one character beyond ASCII
    rb"| {1,4}(?= )"  # a run of blanks, but for the last one: it binds to what follows
    rb"|[\x00-\xff]"
)


def encode(text: str) -> array[int]:
    """Token ids of `text`. Raises `UnicodeEncodeError` for a lone surrogate."""
    return array("I", [int.from_bytes(piece, "little") for piece in _PIECE.findall(text.encode())])


def decode(ids: Iterable[int]) -> str:
    """The text of token ids; what is not UTF-8 shows as U+FFFD. Inverse of `encode` but for NUL bytes."""
    data = b"".join(_bytes_of(token) for token in ids if token != END_TOKEN)
    return data.decode(errors="replace")


def are_tokens(ids: Sequence[object]) -> bool:
    """Whether every item can be a token id."""
    return all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in ids)


def _bytes_of(token: int) -> bytes:
    return token.to_bytes(4, "little").rstrip(b"\0") or b"\0"
