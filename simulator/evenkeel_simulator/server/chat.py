"""The chat template: a conversation as one prompt.

Place in the flow: chat body → **render** → tokens. Fixed and simple: each message is a role marker, a line
break and its text; the prompt ends with the assistant's marker. No text is stripped, so a conversation that
repeats an earlier answer extends the earlier prompt byte by byte, and the cache holds all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class ContentPart(msgspec.Struct):
    """One part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct):
    """One message of a chat body."""

    role: str
    content: str | list[ContentPart] | None = None


def render(messages: Sequence[ChatMessage]) -> str:
    """The prompt of a conversation. Raises `ValueError` naming the message that has no text form."""
    turns = (f"<|{message.role}|>\n{_text(i, message)}\n" for i, message in enumerate(messages))
    return "".join(turns) + "<|assistant|>\n"


def _text(index: int, message: ChatMessage) -> str:
    if message.content is None:  # an assistant's turn that only called tools
        return ""
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise ValueError(
                f"messages[{index}].content: the model reads text only, not {part.type!r}"
            )
    return " ".join(part.text or "" for part in message.content)
