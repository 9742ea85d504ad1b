"""Estimates of input tokens, before an engine counts them (R18). Pure.

Each tenant has its own, for each adapter: text by its bytes, media by kind. A request teaches one of them only: text if it has
nothing else, a kind of media if it has no other kind, and none if it has token ids. What is learnt has bounds and
fades, and one request counts no more than `MOST_BYTES` of text. So no tenant's requests, and no claim of an engine about them,
change the estimates of another tenant.
"""

from __future__ import annotations

from typing import Final

from evenkeel_router.api.inference import Inference
from evenkeel_router.api.prompt import USUAL_TOKEN_BYTES

SHORT_BYTES: Final = 512
"""Prompts below this teach what a template adds; longer ones the bytes of a token."""
MOST_BYTES: Final = 16_384
"""Weight of one long prompt at most: otherwise one request would replace what many taught."""
LONGEST_TOKEN_BYTES: Final = 16
"""Most bytes of a token, in the mean of one text. The least is 1: tokenizers that fall back to bytes make one token of each."""
_MOST_ADDED: Final = 2048.0  # tokens that a template adds to a prompt
_MEMORY: Final = 0.99  # of about the last hundred requests
_ADDED_RATE: Final = 0.05
_MOST_FACTOR: Final = 16.0


class TokenRatio:
    """Tokens of text by its bytes: what a template adds, and tokens per byte. Starts as English without a template."""

    __slots__ = ("_added", "_bytes", "_tokens")

    def __init__(self) -> None:
        self._bytes = 1024.0 * USUAL_TOKEN_BYTES
        self._tokens = 1024.0
        self._added = 0.0

    def estimate(self, size_bytes: int) -> int:
        """Input tokens of a prompt, at least 1."""
        return round(self._added + size_bytes * self._tokens / self._bytes) or 1

    def learn(self, size_bytes: int, tokens: float) -> None:
        """A prompt of `size_bytes` had `tokens`."""
        if size_bytes < SHORT_BYTES:
            added = tokens - size_bytes * self._tokens / self._bytes
            self._added += _ADDED_RATE * (min(max(added, 0.0), _MOST_ADDED) - self._added)
            return
        # Bounded ratios have a bounded mean.
        tokens = min(max(tokens - self._added, size_bytes / LONGEST_TOKEN_BYTES), size_bytes)
        weight = min(1.0, MOST_BYTES / size_bytes)
        self._bytes = self._bytes * _MEMORY + weight * size_bytes
        self._tokens = self._tokens * _MEMORY + weight * tokens


class MediaFactor:
    """Tokens of one kind of media, over the tokens that its rule expects (`contents.MEDIA`). Starts at 1."""

    __slots__ = ("_expected", "_got")

    def __init__(self) -> None:
        self._expected = self._got = 4096.0

    def estimate(self, expected_tokens: float) -> float:
        """Input tokens of media whose rule expects so many."""
        factor = self._got / self._expected
        return expected_tokens * min(max(factor, 1 / _MOST_FACTOR), _MOST_FACTOR)

    def learn(self, expected_tokens: float, tokens: float) -> None:
        """Media had `tokens`; one request counts for `MOST_BYTES` expected tokens at most."""
        weight = min(1.0, MOST_BYTES / expected_tokens)
        self._expected = self._expected * _MEMORY + weight * expected_tokens
        self._got = self._got * _MEMORY + weight * max(0.0, tokens)


class Estimates(TokenRatio):
    """The estimates of one tenant for one model or adapter."""

    __slots__ = ("_media",)

    def __init__(self) -> None:
        super().__init__()
        self._media: dict[str, MediaFactor] = {}

    def of(self, inference: Inference) -> int:
        """Input tokens of a request, at least 1."""
        tokens = inference.prompt_tokens
        if tokens is None:
            # As `estimate`: a call would cost as much again.
            tokens = round(self._added + inference.prompt_bytes * self._tokens / self._bytes) or 1
        return self._with_media(inference, tokens) if inference.media else tokens

    def _with_media(self, inference: Inference, tokens: int) -> int:
        for media in inference.media:
            factor = self._media.get(media.kind)
            tokens += round(media.tokens if factor is None else factor.estimate(media.tokens))
        return tokens

    def taught(self, inference: Inference, tokens: int) -> None:
        """An engine counted so many tokens for a request."""
        size_bytes, by_text = inference.prompt_bytes, tokens - self._added
        if (
            by_text <= size_bytes <= by_text * LONGEST_TOKEN_BYTES
            and SHORT_BYTES <= size_bytes <= MOST_BYTES
            and inference.prompt_tokens is None
            and not inference.media
        ):
            # The usual case, as `learn`: a call would cost as much again.
            self._bytes = self._bytes * _MEMORY + size_bytes
            self._tokens = self._tokens * _MEMORY + by_text
        else:
            self._taught_by(inference, tokens)

    def _taught_by(self, inference: Inference, tokens: int) -> None:
        size_bytes = inference.prompt_bytes
        if inference.prompt_tokens is not None or not size_bytes:
            return
        if not inference.media:
            self.learn(size_bytes, tokens)
        elif len(inference.media) == 1:
            (media,) = inference.media
            factor = self._media.get(media.kind)
            if factor is None:
                factor = self._media[media.kind] = MediaFactor()
            factor.learn(media.tokens, tokens - self.estimate(size_bytes))


class TenantEstimates:
    """The estimates of one tenant."""

    __slots__ = ("_adapters", "model")

    def __init__(self) -> None:
        self.model = Estimates()
        self._adapters: dict[str, Estimates] = {}
        """Adapter → its estimates. As many as the configuration ever named."""

    def of(self, adapter: str) -> Estimates:
        """The estimates for an adapter."""
        found = self._adapters.get(adapter)
        if found is None:
            found = self._adapters[adapter] = Estimates()
        return found
