"""One request as the engine sees it: the fields of a policy, and its prompt, true length and times."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

from evenkeel_fairshare.replica.contract import Request

from evenkeel_simulator.engine.cache import Node, Segment, namespace


class RequestError(ValueError):
    """A request that no engine could ever serve; the message names the field."""


class State(Enum):
    """Where a request is."""

    NEW = "new"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"
    REJECTED = "rejected"


@dataclass(slots=True, eq=False)
class EngineRequest(Request):
    """A request with its prompt and its future output. `Engine.submit` takes ownership."""

    prompt: Sequence[Segment] = ()
    """The part of the input that can be shared. `input_tokens` beyond its sum (a partial page at the end)
    are computed and never cached."""
    target_output_tokens: int = 1
    """Number of output tokens, from 1 to `max_output_tokens`. No fair policy reads it."""
    fixed_length: bool = False
    """The request produces exactly `max_output_tokens` (`ignore_eos`), so SGLang expects no early end."""
    adapter: str | None = None
    """Name of its LoRA adapter; None: the model without an adapter."""
    cache_salt: str = ""
    """Requests with different salts share no prefix."""
    output_key: Hashable = None
    """Key under which the output is cached below the prompt as one segment; None: it is not cached."""

    # Kept by the engine.
    state: State = State.NEW
    node: Node | None = None
    """While waiting: the deepest match, if the policy wants matches. In the batch: the locked node."""
    depth: int = 0
    path_tokens: int = 0
    pending_tokens: int = 0
    """Tokens of this prefill still to be computed."""
    private_tokens: int = 0
    """Pool tokens that only this request holds: not (yet) in the cache. While it runs, see `held_tokens`."""
    entry: int = 0
    """Serial in the batch's list of ends."""
    making: tuple[Node, Segment] | None = None
    """Place in the cache that the request extends while in prefill. Other requests may wait for it."""
    admitted_s: float | None = None
    """Time of the first admission; None before."""
    first_token_s: float | None = None
    finished_s: float | None = None
    """Time of its end, for any reason."""
    cached_tokens: int = 0
    """Input tokens found in the cache at the first admission: `usage.prompt_tokens_details`."""
    computed_tokens: int = 0
    """Input tokens computed, and output tokens computed again after retractions, over all admissions."""
    retractions: int = 0

    def __post_init__(self) -> None:
        Request.__post_init__(self)
        if self.adapter is not None or self.cache_salt:
            self.prompt = (*namespace(self.adapter, self.cache_salt), *self.prompt)

    @property
    def context_tokens(self) -> int:
        """Input and output so far: what an admission must have in memory."""
        return self.input_tokens + self.output_tokens

    @property
    def held_tokens(self) -> int:
        """Pool tokens that only this request holds, at any time."""
        if self.state is State.RUNNING:  # decode steps are added up for the whole batch only
            # The last token is yet to be fed back.
            return self.context_tokens - 1 - self.path_tokens
        return self.private_tokens

    @property
    def most_matched_tokens(self) -> int:
        """Most tokens that may match. At least one token is always computed: the next token comes from it."""
        return self.context_tokens - 1

    @property
    def remaining_tokens(self) -> int:
        """Output tokens that it will still produce."""
        return self.target_output_tokens - self.output_tokens

    @property
    def reserved_tokens(self) -> int:
        """Most output tokens that the scheduler must expect."""
        return self.max_output_tokens - self.output_tokens

    def enter(self, extend_tokens: int, now_s: float) -> None:
        """Admit the request, with `extend_tokens` to compute."""
        self.state = State.PREFILLING
        self.extend_tokens = self.pending_tokens = extend_tokens
        self.computed_tokens += extend_tokens
        if self.admitted_s is None:
            self.admitted_s, self.cached_tokens = now_s, self.matched_tokens

    def begin_output(self, now_s: float) -> None:
        """Complete the prefill, which produces a token."""
        self.state = State.RUNNING
        self.output_tokens += 1
        if self.first_token_s is None:
            self.first_token_s = now_s
            self.first_token(now_s)
        self.token_s = now_s

    def retained(self) -> Sequence[Segment]:
        """Segments that the cache keeps at its end: prompt and output. Override to cut into pages.

        Must begin with the prompt and hold no more than the context."""
        if self.output_key is None or not self.output_tokens:
            return self.prompt
        if sum([segment.tokens for segment in self.prompt]) < self.input_tokens:
            return self.prompt  # what lies between prompt and output is not cached
        return (*self.prompt, Segment(self.output_key, self.output_tokens))

    def check(self, kv_tokens: int) -> None:
        """Raise `RequestError` if no empty engine with that pool could serve it."""
        if self.input_tokens < 1:
            raise RequestError(f"input_tokens is {self.input_tokens}, must be at least 1")
        if sum([segment.tokens for segment in self.prompt]) > self.input_tokens:
            raise RequestError(f"prompt is longer than input_tokens ({self.input_tokens})")
        if not 1 <= self.target_output_tokens <= self.max_output_tokens:
            raise RequestError(
                f"target_output_tokens is {self.target_output_tokens}, must be from 1 to "
                f"max_output_tokens ({self.max_output_tokens})"
            )
        if self.input_tokens + self.max_output_tokens > kv_tokens:
            raise RequestError(
                f"input_tokens + max_output_tokens is {self.input_tokens + self.max_output_tokens}, "
                f"the KV pool holds {kv_tokens}"
            )
