"""Programs of the papers' workloads, drawn from a few parameters (ALGORITHMS §4, §5).

Every class describes one kind of program and builds one from a random generator: the same seed gives the same
workload on every machine. Token counts follow Table 2 and 3 of the DLPM paper and SGLang's public benchmarks.

Outputs are keyed by the call's number alone. That is enough: the prompt above holds a segment of the program's own, so two
programs never have different outputs on the same path.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log, sqrt
from random import Random
from typing import Annotated

import msgspec
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.traffic.workload import Call
from msgspec import Meta

Tokens = Annotated[int, Meta(ge=1, le=10_000_000)]
Count = Annotated[int, Meta(ge=1, le=10_000)]
Share = Annotated[float, Meta(ge=0, lt=1)]


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Common fields of all programs."""

    def calls(self, program: str, client: str, rng: Random) -> tuple[Call, ...]:
        """The calls of a program; `program` is unique in the workload."""
        raise AssertionError(f"{type(self).__name__} builds no calls")


class Single(Spec, frozen=True, kw_only=True, tag="single"):
    """One request; `prefix_tokens` of its input are the same for all requests of its client."""

    input_tokens: Tokens
    output_tokens: Tokens
    prefix_tokens: Annotated[int, Meta(ge=0)] = 0
    max_output_tokens: Tokens | None = None
    """The limit in the request; None: the true length, as with `ignore_eos`."""
    spread: Share = 0.0
    """Lengths (not the prefix) are drawn uniformly from (1 ± spread) times the given ones."""

    def __post_init__(self) -> None:
        if self.prefix_tokens >= self.input_tokens:
            raise ValueError(
                f"prefix_tokens is {self.prefix_tokens}, must be below input_tokens "
                f"({self.input_tokens})"
            )
        longest = ceil(self.output_tokens * (1 + self.spread))
        if self.max_output_tokens is not None and self.max_output_tokens < longest:
            raise ValueError(
                f"max_output_tokens is {self.max_output_tokens}, must be at least the longest "
                f"output ({longest})"
            )

    def calls(self, program: str, client: str, rng: Random) -> tuple[Call, ...]:
        own = _around(self.input_tokens - self.prefix_tokens, self.spread, rng)
        output = _around(self.output_tokens, self.spread, rng)
        prompt = [Segment(f"{client}/prefix", self.prefix_tokens)] if self.prefix_tokens else []
        prompt.append(Segment(program, own))
        return (_call(prompt, output, self.max_output_tokens),)


class LogNormal(Spec, frozen=True, kw_only=True, tag="log-normal"):
    """One request with lengths of real chats: many short, few long. Lengths beyond `most_tokens` are cut."""

    input_tokens: Tokens
    """The mean before the cut, as are output tokens."""
    output_tokens: Tokens
    input_sigma: Annotated[float, Meta(gt=0, le=3)] = 1.0
    """Standard deviation of the logarithm."""
    output_sigma: Annotated[float, Meta(gt=0, le=3)] = 1.0
    most_tokens: Tokens = 2048

    def calls(self, program: str, client: str, rng: Random) -> tuple[Call, ...]:
        own = self._length(self.input_tokens, self.input_sigma, rng)
        output = self._length(self.output_tokens, self.output_sigma, rng)
        return (_call([Segment(program, own)], output, self.most_tokens),)

    def _length(self, mean: int, sigma: float, rng: Random) -> int:
        drawn = rng.lognormvariate(log(mean) - sigma**2 / 2, sigma)
        return min(self.most_tokens, max(1, round(drawn)))


class Chat(Spec, frozen=True, kw_only=True, tag="chat"):
    """A conversation: each turn's prompt holds all turns and answers before it."""

    system_tokens: Tokens
    """Tokens of the system prompt, which is the same for all conversations of a client."""
    turns: Count
    turn_tokens: Tokens
    output_tokens: Tokens
    spread: Share = 0.5

    def calls(self, program: str, client: str, rng: Random) -> tuple[Call, ...]:
        prompt = [Segment(f"{client}/system", self.system_tokens)]
        calls: list[Call] = []
        for turn in range(self.turns):
            prompt.append(Segment((program, turn), _around(self.turn_tokens, self.spread, rng)))
            output = _around(self.output_tokens, self.spread, rng)
            after = (turn - 1,) if turn else ()
            calls.append(_call(prompt, output, None, key=turn, after=after))
            prompt.append(calls[-1].output)
        return tuple(calls)


class TreeOfThoughts(Spec, frozen=True, kw_only=True, tag="tree-of-thoughts"):
    """Four levels (plan, execute, reflect, answer), each node branching: b + b² + b³ + b⁴ calls.

    Instruction and turns of about 53, 32, 25 and 19 words as in SGLang's benchmark, at 4/3 tokens a word.
    """

    branches: Annotated[int, Meta(ge=1, le=16)]
    question_tokens: Tokens = 61
    """GSM8K's mean of 46 words."""
    output_tokens: Tokens = 256
    instruction_tokens: Tokens = 71
    turn_tokens: tuple[Tokens, ...] = (43, 33, 25)
    spread: Share = 0.5
    """Spread of the questions' lengths."""
    diverse: bool = False
    """Whether branches differ. At the benchmark's temperature of about 0 they do not: all thoughts of a level
    are the same tokens, so a tree is a single path in the cache. Only so can round-robin have 95 % hits on
    four replicas, as the DLPM paper reports; with diverse thoughts it has 67 % even in an idle fleet."""

    def calls(self, program: str, client: str, rng: Random) -> tuple[Call, ...]:
        question = _around(self.question_tokens, self.spread, rng)
        root = (Segment("tot/plan", self.instruction_tokens), Segment(program, question))
        calls: list[Call] = []
        level: list[tuple[tuple[Segment, ...], tuple[int, ...]]] = [(root, ())]
        for depth in range(len(self.turn_tokens) + 1):
            below: list[tuple[tuple[Segment, ...], tuple[int, ...]]] = []
            for prompt, after in level:
                for _ in range(self.branches):
                    number = len(calls)
                    key = number if self.diverse else depth
                    call = _call(prompt, self.output_tokens, None, key=key, after=after)
                    calls.append(call)
                    if depth < len(self.turn_tokens):
                        turn = Segment(f"tot/{depth}", self.turn_tokens[depth])
                        below.append(((*prompt, call.output, turn), (number,)))
            level = below
        return tuple(calls)


class Judge(Spec, frozen=True, kw_only=True, tag="judge"):
    """Branch, solve, merge: one call per dimension on a shared article, then a score of two tokens."""

    dimensions: Count
    article_tokens: Tokens = 2500
    system_tokens: Tokens = 200
    """Tokens of the system prompt, which is the same for all clients."""
    dimension_tokens: Tokens = 30
    output_tokens: Tokens = 256
    spread: Share = 0.2
    """Spread of the articles' lengths."""

    def calls(self, program: str, client: str, rng: Random) -> tuple[Call, ...]:
        shared = (
            Segment("judge/system", self.system_tokens),
            Segment(program, _around(self.article_tokens, self.spread, rng)),
        )
        calls = [
            _call((*shared, Segment(("dimension", n), self.dimension_tokens)), self.output_tokens)
            for n in range(self.dimensions)
        ]
        # The score is asked on the article and all judgements: a new text after the shared prefix.
        merged = Segment("merge", self.dimensions * (self.output_tokens + 10))
        calls.append(_call((*shared, merged), 2, after=tuple(range(self.dimensions))))
        return tuple(calls)


class DocumentQa(Spec, frozen=True, kw_only=True, tag="document-qa"):
    """Questions on one long document, one after another (LooGLE)."""

    document_tokens: Tokens = 21_400
    questions: Count = 4
    question_tokens: Tokens = 49
    output_tokens: Tokens = 15
    spread: Share = 0.2
    """Spread of the documents' lengths."""

    def calls(self, program: str, client: str, rng: Random) -> tuple[Call, ...]:
        document = Segment(program, _around(self.document_tokens, self.spread, rng))
        return tuple(
            _call(
                (document, Segment(("question", n), self.question_tokens)),
                self.output_tokens,
                after=(n - 1,) if n else (),
            )
            for n in range(self.questions)
        )


ProgramSpec = Single | LogNormal | Chat | TreeOfThoughts | Judge | DocumentQa


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a client's programs arrive."""

    rate_per_s: float
    pattern: str = "gamma"
    """`gamma`: gaps of the given `cv` (1: Poisson). `uniform`: evenly spaced with a random phase, as the VTC
    artifact's. `ramp`: the rate grows linearly from `from_rate_per_s`."""
    cv: float = 1.0
    from_rate_per_s: float = 0.0
    on_off_s: Annotated[float, Meta(ge=0)] = 0.0
    """Drop what arrives in every second interval of this length; 0: never."""
    start_s: Annotated[float, Meta(ge=0)] = 0.0
    stop_s: Annotated[float, Meta(gt=0)] = float("inf")
    phase: Annotated[float, Meta(ge=0, lt=1)] | None = None
    """`uniform`: the part of a gap before the first one; None: random."""

    def __post_init__(self) -> None:
        if self.pattern not in ("gamma", "uniform", "ramp"):
            raise ValueError(f"pattern is {self.pattern!r}, must be gamma, uniform or ramp")
        for name in ("rate_per_s", "cv"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")
        if not 0 <= self.from_rate_per_s < self.rate_per_s:
            raise ValueError(
                f"from_rate_per_s is {self.from_rate_per_s}, must be from 0 to below rate_per_s"
            )

    def times(self, duration_s: float, rng: Random) -> Iterator[float]:
        """Arrival times from `start_s` to the sooner of `stop_s` and the duration, ascending."""
        stop_s = min(self.stop_s, duration_s)
        phase = 0.0
        if self.pattern == "uniform":
            phase = rng.random() if self.phase is None else self.phase
        now_s = self.start_s + phase / self.rate_per_s
        while True:
            now_s += self._gap_s(now_s, stop_s, rng)
            if now_s >= stop_s:
                return
            if not (self.on_off_s and int(now_s / self.on_off_s) % 2):
                yield now_s

    def _gap_s(self, now_s: float, stop_s: float, rng: Random) -> float:
        if self.pattern == "uniform":
            return 1 / self.rate_per_s
        if self.pattern == "ramp":
            # The gap g in which the growing rate adds up to one arrival: a·g + s·g²/2 = 1.
            slope = (self.rate_per_s - self.from_rate_per_s) / (stop_s - self.start_s)
            rate = self.from_rate_per_s + slope * (now_s - self.start_s)
            return (sqrt(rate**2 + 2 * slope) - rate) / slope
        shape = 1 / self.cv**2
        return rng.gammavariate(shape, 1 / (shape * self.rate_per_s))


def _around(tokens: int, spread: float, rng: Random) -> int:
    return max(1, round(tokens * rng.uniform(1 - spread, 1 + spread))) if spread else tokens


def _call(
    prompt: tuple[Segment, ...] | list[Segment],
    output_tokens: int,
    max_output_tokens: int | None = None,
    *,
    key: int | None = None,
    after: tuple[int, ...] = (),
) -> Call:
    return Call(
        input_tokens=sum([segment.tokens for segment in prompt]),
        output_tokens=output_tokens,
        max_output_tokens=max_output_tokens or output_tokens,
        prompt=tuple(prompt),
        output_key=key,
        after=after,
    )
