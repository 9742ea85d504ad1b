"""One choice of one HTTP request: the engine's request and the client's answer.

No output is queued for the client. The engine counts the output tokens, the handler counts those it has sent, and the text
between can be made at any time. So a client that reads slowly costs no memory and delays no other.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import xxhash
from evenkeel_contract.key import UNKNOWN, ClientKey, ClientKeyError, decode

from evenkeel_simulator.engine.cache import Segment, namespace
from evenkeel_simulator.engine.request import EngineRequest
from evenkeel_simulator.server.pages import pages_of
from evenkeel_simulator.server.speech import Speech


@dataclass(frozen=True, slots=True)
class Owner:
    """The client to charge."""

    key: ClientKey
    refused: str | None
    """Why the key sent was not taken: `missing`, `malformed` or `repeated`. None: it was."""
    cache_salt: str = ""
    """Salt of the client's cache; requests share cached prefixes only with those of the same salt."""


def owner_of(keys: Sequence[str], *, cache_salt: str = "") -> Owner:
    """The owner of a request that carries these client keys (one, unless something is wrong)."""
    if len(keys) != 1:
        return Owner(UNKNOWN, "repeated" if keys else "missing", cache_salt)
    try:
        return Owner(decode(keys[0]), None, cache_salt)
    except ClientKeyError:
        return Owner(UNKNOWN, "malformed", cache_salt)


class FinishType(Enum):
    """SGLang's finish reasons."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Finish:
    """How a choice ended."""

    type: FinishType
    matched: int | str | None = None
    message: str = ""
    """Why the request was aborted; empty if it was not."""


@dataclass(slots=True, eq=False, kw_only=True)
class ServedRequest(EngineRequest):
    """A choice. `id` is its `rid`; `prompt` is the whole pages of `prompt_ids`."""

    prompt_ids: array[int]
    speech: Speech
    index: int
    """Number of the choice in its HTTP request."""
    page_size: int
    news: asyncio.Event
    """Event that is set when there is new output; the choices of one HTTP request share it."""
    received_s: float
    """Wall clock, monotonic."""
    streaming: bool = False
    last_token_s: float | None = None
    """Wall clock of the last token."""
    finish: Finish | None = None
    """How the answer ended; None before the last token."""

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, in OpenAI's words; None while it goes on."""
        if self.finish is None:
            return None
        if self.speech.calls and self.finish.type is FinishType.STOP:
            return "tool_calls"
        return self.finish.type.value

    @property
    def matched_stop(self) -> int | str | None:
        """What stopped it; None too where it called a tool, as in SGLang."""
        return None if self.finish is None or self.speech.calls else self.finish.matched

    def text(self) -> str:
        """All text delivered."""
        return self.speech.text(0, self.output_tokens)

    def tool_calls(self) -> list[tuple[str, str]]:
        """(name, arguments) of each tool call delivered."""
        deltas = self.speech.deltas(0, self.output_tokens)
        return [(delta.name, delta.text) for delta in deltas if delta.name is not None]

    def call_id(self, number: int) -> str:
        """Id of tool call `number`."""
        return f"call_{xxhash.xxh3_128_hexdigest(f'{self.id} {number}'.encode())[:24]}"

    def retained(self) -> Sequence[Segment]:
        """Prompt and output in whole pages. The last token's keys and values are never computed."""
        ids = self.prompt_ids + array("I", self.speech.ids(0, max(0, self.output_tokens - 1)))
        return (*namespace(self.adapter, self.cache_salt), *pages_of(ids, self.page_size))
