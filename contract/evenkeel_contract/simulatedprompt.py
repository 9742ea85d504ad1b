"""The simulator's chat template and tokenizer, which a router in tokens mode uses too.

In the template each message is a role marker, a line break and its text; the prompt ends with the assistant's marker. No
text is stripped, so a conversation that repeats an earlier answer extends the earlier prompt byte by byte.

A token is at most four bytes of text. Its id is those bytes as a little-endian number, so ids fit 32 bits and decode
without a vocabulary. English text has about three bytes per token.

A new token begins at every blank before a letter. So `encode(a + b) == encode(a) + encode(b)` if `b` begins with a blank
and a letter and `a` does not end with a blank. A next turn that repeats prompt and answer therefore extends the cached
prefix exactly, as byte-level BPE nearly always does.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

_PIECE: Final = re.compile(
    rb" [A-Za-z]{1,3}"  # a blank and the first letters of the next word
    rb"|[A-Za-z]{1,4}"
    rb"|[0-9]{1,3}"
    rb"|[\xc0-\xff][\x80-\xbf]{1,3}"  # one character beyond ASCII
    rb"| {1,4}(?= )"  # a run of blanks without the last one, which belongs to the next word
    rb"|[\x00-\xff]"
)


class ContentPart(msgspec.Struct):
    """One part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """One message of a chat body."""

    role: str
    content: str | list[ContentPart] | None = None


def encode(text: str) -> array[int]:
    """Token ids of `text`. Raises `UnicodeEncodeError` for a lone surrogate."""
    return array("I", [int.from_bytes(piece, "little") for piece in _PIECE.findall(text.encode())])


def render(messages: Sequence[ChatMessage]) -> str:
    """The prompt of a conversation. Raises `ValueError` naming the message that has no text form."""
    turns = (f"<|{message.role}|>\n{_text(i, message)}\n" for i, message in enumerate(messages))
    return "".join(turns) + "<|assistant|>\n"


def _text(index: int, message: ChatMessage) -> str:
    if message.content is None:  # an assistant's turn that contains only tool calls
        return ""
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise ValueError(
                f"messages[{index}].content: the model accepts only text, not {part.type!r}"
            )
    return " ".join(part.text or "" for part in message.content)
