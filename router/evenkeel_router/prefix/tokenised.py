"""A tokenised prompt, or the reason why there is none; and whether the count is right (DESIGN section 5).

A prompt that cannot be tokenised as the engine does it is matched by its text; the reason is counted, logged once, and
shown on the admin port. No request is refused or delayed for it: an error here costs a cache hit, never an answer.

The router checks itself. The engine reports how many tokens a prompt had; a kind of request whose count was wrong three
times in a row is no longer tokenised, since its hashes are wrong too. Chat templates read more of a request, by engine version
and flag, than a fixed list could name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from evenkeel_router.fleet.prediction import Pages

WRONG_IN_A_ROW: Final = 3


class Reason(Enum):
    """Why a prompt is matched by its text in tokens mode; the metric's label."""

    NO_TOKENIZER = "no_tokenizer"
    """The model's is not there (yet), or of a kind that the router does not read."""
    NO_TEMPLATE = "no_template"
    """A chat, and the model's folder has no chat template."""
    MULTIMODAL = "multimodal"
    """Images, audio, video: their tokens are the engine's business."""
    OPTIONS = "options"
    """A field that changes the prompt or its cache in ways that are not modelled: an adapter, a session, a suffix."""
    TEMPLATE = "template_error"
    """The template, or its input, is invalid; the engine answers with an error."""
    EMBEDDINGS = "embeddings"
    """Embeddings, rankings, scores, classes and transcriptions: prefixes are not read."""
    TOO_LONG = "too_long"
    """Tokenising it would delay others."""
    BUSY = "busy"
    """More is being tokenised than is worth waiting for."""
    MISMATCH = "mismatch"
    """Requests of its kind were found to have another number of tokens at the engine."""


class UntokenisedError(Exception):
    """The prompt is matched by its text."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail or reason.value)
        self.reason = reason
        self.detail = detail
        """Detail for the log, which gets the first of each reason. Never anything that a client wrote."""


class Tokenised(NamedTuple):
    """A request's prompts, tokenised as the engine does."""

    tokens: int
    """Tokens of all prompts together."""
    first: Pages
    """The first prompt (`sglang_blocks`, `vllm_blocks`)."""
    kind: str
    """Kind of the request, for the check: `prompt`, `chat`, `tools`, `messages chat` …"""


class Untokenised:
    """Counts of prompts that were matched by their text, by reason; and the check."""

    def __init__(self) -> None:
        self.counts: Counter[Reason] = Counter()
        self.error = ""
        """Why there is no tokenizer; empty while there is one."""
        self._wrong: Counter[str] = Counter()

    def count(self, reason: Reason) -> bool:
        """One more; True for the first of its reason."""
        self.counts[reason] += 1
        return self.counts[reason] == 1

    def distrusts(self, kind: str) -> bool:
        """Whether requests of this kind are not tokenised any more."""
        return self._wrong[kind] >= WRONG_IN_A_ROW

    def check(self, kind: str, *, tokens: int, reported: int) -> bool:
        """A request ended well; whether the engine counted as many tokens. It may have counted one prompt
        for each of several answers."""
        right = tokens > 0 and reported > 0 and reported % tokens == 0
        if right:
            self._wrong.pop(kind, None)
        else:
            self._wrong[kind] += 1
        return right

    def trust_again(self) -> None:
        """Another tokenizer: what was wrong with the last one is no longer known."""
        self._wrong.clear()
        self.error = ""


def most_reported(digests: Mapping[str, str], current: str) -> str:
    """The digest of the tokenizer that most replicas report; of several the current one, else the smallest. Empty: none.

    `digests` is by replica. Replicas differ while a rollout changes the model; the matches at the others are wrong then,
    which costs cache hits and nothing else.
    """
    counts = Counter(digests.values())
    if not counts:
        return ""
    most = max(counts.values())
    first = [digest for digest, count in counts.items() if count == most]
    return current if current in first else min(first)
