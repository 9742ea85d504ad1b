"""What a replica makes tokens with, told to routers in tokens mode over its reports port. MessagePack.

A router sends a `PromptQuestion` where it else sends a `ReportRequest`, and gets `PromptFacts`: the model's tokenizer
files, as they lie where the engine loaded them from. So a router needs neither the model's volume nor
Hugging Face, and follows the engines when a rollout changes their model.

The surprising thing: a replica that knows no such question says nothing. Plug-ins of before this do not answer
what they cannot read, so an asker must give up by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from evenkeel_contract.reports import ReportError

FACTS_VERSION: Final = 1
TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
SPECIAL_TOKENS_FILE: Final = "special_tokens_map.json"
OLD_TEMPLATE_FILE: Final = "chat_template.json"
FILES: Final = (
    TOKENIZER_FILE,
    CONFIG_FILE,
    TEMPLATE_FILE,
    SPECIAL_TOKENS_FILE,
    OLD_TEMPLATE_FILE,
)
"""What of a model's folder makes tokens; all but the first may be missing."""
MAX_FACTS_BYTES: Final = 256 * 1024 * 1024
"""Of one answer. The largest vocabularies in use come to some 35 MB of JSON."""


class PromptQuestion(msgspec.Struct, frozen=True, array_like=True, tag="prompts"):
    """A router's question."""

    version: int
    known: str = ""
    """The digest of what the router holds; files that have it are not sent again."""


class PromptFacts(msgspec.Struct, frozen=True, array_like=True, tag="prompts"):
    """A replica's answer."""

    version: int
    digest: str
    """Of all that follows; equal digests, equal tokens."""
    page_tokens: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    """Tokens of a page, whose hashes KV events tell."""
    simulated: bool = False
    """It is a simulator, whose rules need no files (`simulatedprompt`)."""
    trouble: str = ""
    """Why a router cannot do the same as this engine; empty where it can."""
    files: dict[str, bytes] = {}
    """By name, of `FILES`."""


def facts_of(
    files: Mapping[str, bytes], *, page_tokens: int, simulated: bool = False, trouble: str = ""
) -> PromptFacts:
    """An answer, with its digest."""
    digest = hashlib.sha256(repr((page_tokens, simulated, trouble)).encode())
    for name in sorted(files):
        digest.update(b"%b\0%d\0%b" % (name.encode(), len(files[name]), files[name]))
    return PromptFacts(
        FACTS_VERSION, digest.hexdigest(), page_tokens, simulated, trouble, dict(files)
    )


def answer(facts: PromptFacts, question: PromptQuestion) -> bytes:
    """What a replica sends."""
    if question.known == facts.digest:
        facts = msgspec.structs.replace(facts, files={})
    return _encoder.encode(facts)


def ask(known: str = "") -> bytes:
    """What a router sends."""
    return _encoder.encode(PromptQuestion(FACTS_VERSION, known))


def decode_facts(data: bytes) -> PromptFacts:
    """Read an answer; raises `ReportError`."""
    try:
        facts = _facts.decode(data)
    except _UNREADABLE as error:
        raise ReportError(f"not what a replica makes tokens with: {error}") from error
    if facts.version != FACTS_VERSION:
        raise ReportError(f"version {facts.version} is not {FACTS_VERSION}")
    return facts


_encoder = msgspec.msgpack.Encoder()
_facts = msgspec.msgpack.Decoder(PromptFacts)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
