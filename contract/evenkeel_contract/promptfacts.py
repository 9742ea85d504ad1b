"""A replica's tokenizer files, which routers in tokens mode request over its reports port. MessagePack.

A router sends a `PromptQuestion` and receives `PromptFacts`: the tokenizer files that the engine loaded. So a router
needs neither the model's volume nor Hugging Face, and follows the engines when a rollout changes their model. An older
plug-in does not answer this request, so the router needs a timeout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from evenkeel_contract.kvevents import PageHash
from evenkeel_contract.messages import check_version, read
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
"""Files of a model's folder that determine the tokens; all but the first may be missing."""
MAX_FACTS_BYTES: Final = 256 * 1024 * 1024
"""Largest answer. The largest vocabularies in use are about 35 MB of JSON."""


class PromptQuestion(msgspec.Struct, frozen=True, array_like=True, tag="prompts"):
    """A router's question for what a prompt becomes on a replica."""

    version: int
    known: str = ""
    """Digest of the router's current files; the replica does not send files with this digest again."""


class PromptFacts(msgspec.Struct, frozen=True, array_like=True, tag="prompts"):
    """What a replica answers to a `PromptQuestion`."""

    version: int
    digest: str
    """Digest of all following fields; equal digests mean equal tokens."""
    page_tokens: Annotated[int, msgspec.Meta(ge=1, le=65536)]
    """Tokens of a page; KV events contain the hashes of pages."""
    simulated: bool = False
    """The replica is a simulator, which needs no files (`simulatedprompt`)."""
    trouble: str = ""
    """Why a router cannot tokenise like this engine; empty if it can."""
    files: dict[str, bytes] = {}
    """Content by name; names are those of `FILES`."""
    page_hash: PageHash = PageHash.SGLANG


def facts_of(
    files: Mapping[str, bytes],
    *,
    page_tokens: int,
    simulated: bool = False,
    trouble: str = "",
    page_hash: PageHash = PageHash.SGLANG,
) -> PromptFacts:
    """Build an answer with its digest."""
    digest = hashlib.sha256(repr((page_tokens, simulated, trouble, page_hash.value)).encode())
    for name in sorted(files):
        digest.update(b"%b\0%d\0%b" % (name.encode(), len(files[name]), files[name]))
    return PromptFacts(
        FACTS_VERSION, digest.hexdigest(), page_tokens, simulated, trouble, dict(files), page_hash
    )


def answer(facts: PromptFacts, question: PromptQuestion) -> bytes:
    """Encode a replica's answer."""
    if question.known == facts.digest:
        facts = msgspec.structs.replace(facts, files={})
    return _encoder.encode(facts)


def ask(known: str = "") -> bytes:
    """Encode a router's request."""
    return _encoder.encode(PromptQuestion(FACTS_VERSION, known))


def decode_facts(data: bytes) -> PromptFacts:
    """Read an answer; raises `ReportError`."""
    facts = read(_facts, data, what="a replica's tokenizer files", error=ReportError)
    check_version(facts.version, FACTS_VERSION, ReportError)
    return facts


_encoder = msgspec.msgpack.Encoder()
_facts = msgspec.msgpack.Decoder(PromptFacts)
