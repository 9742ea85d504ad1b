"""One simulated replica: engine, driver, metrics, reports, events, and health.

Nothing here depends on HTTP.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from evenkeel_contract.reportbook import News, ReportBook
from evenkeel_fairshare.replica.contract import Arrival

from evenkeel_simulator.engine.model import Engine
from evenkeel_simulator.engine.request import RequestError
from evenkeel_simulator.server.ask import Ask
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.driver import Driver
from evenkeel_simulator.server.kv_events import KvPublisher, KvRecorder
from evenkeel_simulator.server.metrics import EngineMetrics
from evenkeel_simulator.server.pages import pages_of
from evenkeel_simulator.server.served import Owner, ServedRequest
from evenkeel_simulator.server.settings import Settings
from evenkeel_simulator.server.speech import AnswerLimits, Speech, seed_of, speak, speak_written

_SLACK_TOKENS = 5  # SGLang leaves this many for output, at least


class Overloaded(Exception):
    """This replica cannot take the request now, but could at another time."""


class Replica:
    """State of one server. Create it on the event loop that serves it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        policy = settings.make_policy()
        publishes = settings.kv_events_port is not None
        self._recorder = KvRecorder(settings.page_size) if publishes else None
        self.engine = Engine(
            settings.engine_config,
            policy,
            settings.profile,
            cost=settings.cost,
            observer=self._recorder,
        )
        self.metrics = EngineMetrics(model=settings.model, policy=policy.name)
        self.metrics.watch(self.engine.loads)
        self.driver = Driver(
            self.engine,
            speed=settings.speed,
            metrics=self.metrics,
            publish=self._publish,
        )
        self.publisher: KvPublisher | None = None
        """Publishes KV events; None while none are published."""
        self.book = ReportBook(incarnation=settings.incarnation, policy=policy.name)
        self.draining = asyncio.Event()
        """Event that SIGTERM sets: the replica is not ready, but still serves requests that arrive."""
        self._answering: set[asyncio.Task[object]] = set()
        self._answered = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether the replica takes new requests."""
        return self.is_healthy and self.driver.resumed.is_set()

    @property
    def is_healthy(self) -> bool:
        """Whether the engine works and the server is not about to end."""
        return not (self.draining.is_set() or self.driver.stopped.is_set())

    def refresh_reports(self) -> None:
        """Update the report book."""
        idle = self.book.idle(time.monotonic())
        self.book.take(News.of(self.engine.accounts, self.engine.policy, idle))

    async def drained(self) -> None:
        """Wait until the server drains and no request is being answered."""
        await self.draining.wait()
        while self._answering:
            self._answered.clear()
            await self._answered.wait()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Register the calling task as an answer, for which draining waits."""
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            yield
        finally:
            self._answering.discard(task)
            self._answered.set()

    def cut_off(self) -> None:
        """End every request in progress, even in the middle of its answer."""
        for task in self._answering:
            task.cancel()

    def admit(self, ask: Ask, owner: Owner, *, received_s: float) -> list[ServedRequest]:
        """Submit every choice of a request; all or none.

        Raises `BadRequest` if this replica could never serve it, `Overloaded` if it cannot serve it now.
        """
        if self.driver.stopped.is_set():
            raise Overloaded("the engine has stopped")
        self.metrics.received()
        if owner.refused is not None:
            self.metrics.key_refused(owner.refused)
        news = asyncio.Event()
        prompts = (prompt for prompt in ask.prompts for _ in range(ask.sampling.n))
        choices = [
            self._choice(ask, owner, index=index, prompt=prompt, news=news, received_s=received_s)
            for index, prompt in enumerate(prompts)
        ]
        submitted: list[ServedRequest] = []
        try:
            for choice in choices:
                if self.driver.submit(choice) is Arrival.REJECTED:
                    raise Overloaded("the replica policy admits no more of this client's requests")
                submitted.append(choice)
        except (RequestError, Overloaded) as error:
            self.release(submitted)
            if isinstance(error, Overloaded):
                raise
            raise BadRequest(str(error)) from error
        return choices

    def release(self, choices: Sequence[ServedRequest]) -> None:
        """The client is gone: end its requests that have not ended."""
        for choice in choices:
            self.driver.abort(choice, "Client disconnected")

    def _choice(
        self,
        ask: Ask,
        owner: Owner,
        *,
        index: int,
        prompt: array[int],
        news: asyncio.Event,
        received_s: float,
    ) -> ServedRequest:
        limit = self._output_limit(len(prompt), ask.sampling.max_tokens)
        sampling = ask.sampling
        limits = AnswerLimits(
            max_tokens=limit,
            min_tokens=min(sampling.min_tokens, limit),
            ignore_eos=sampling.ignore_eos,
            stop=sampling.stop,
            stop_token_ids=sampling.stop_token_ids,
            keep_stop=sampling.keep_stop,
        )
        speech = _speech(ask, seed_of(prompt, index % sampling.n, sampling.seed), limits)
        page_size = self.settings.page_size
        return ServedRequest(
            id=_request_id(ask, index),
            client=owner.key.identity,
            tenant=owner.key.tenant_identity,
            arrival_s=0.0,  # the driver knows the time
            input_tokens=len(prompt),
            max_output_tokens=limit,
            fixed_length=sampling.ignore_eos and ask.write is None,
            client_weight=owner.key.client_weight,
            tenant_weight=owner.key.tenant_weight,
            seed=owner.key.seed,
            tenant_seed=owner.key.tenant_seed,
            charge_input=not owner.key.retried_by_fleet,
            # A prompt that is only computed ends with one token, which its client neither gets nor pays.
            paid_output_tokens=owner.key.paid_output_tokens + (not ask.generates),
            prompt=pages_of(prompt, page_size),
            adapter=self.settings.adapter_of(ask.model, ask.lora_path),
            cache_salt=owner.cache_salt,
            target_output_tokens=speech.tokens,
            prompt_ids=prompt,
            speech=speech,
            index=index,
            page_size=page_size,
            news=news,
            received_s=received_s,
            streaming=ask.stream,
        )

    def _output_limit(self, input_tokens: int, max_tokens: int | None) -> int:
        """Output tokens a request may have, by SGLang's rules and words."""
        context = self.settings.context_tokens
        if input_tokens >= context:
            raise BadRequest(
                f"The input ({input_tokens} tokens) is longer than the model's context length "
                f"({context} tokens)."
            )
        if max_tokens is not None and input_tokens + max_tokens > context:
            raise BadRequest(
                f"Requested token count exceeds the model's maximum context length of {context} "
                f"tokens. You requested a total of {input_tokens + max_tokens} tokens: "
                f"{input_tokens} tokens from the input messages and {max_tokens} tokens for the "
                "completion. Please reduce the number of tokens in the input messages or the "
                "completion to fit within the limit."
            )
        longest = min(context, self.settings.pool_tokens) - 1
        if input_tokens >= longest - _SLACK_TOKENS:
            raise BadRequest(
                f"Input length ({input_tokens} tokens) exceeds the maximum allowed length "
                f"({longest - _SLACK_TOKENS} tokens). Use a shorter input."
            )
        room = longest - input_tokens - 1
        return room if max_tokens is None else min(max_tokens, room)

    async def _publish(self) -> None:
        if self._recorder is not None and self.publisher is not None:
            await self.publisher.publish(self._recorder.take(), timestamp=time.time())


def _speech(ask: Ask, seed: int, limits: AnswerLimits) -> Speech:
    """The answer. Raises `BadRequest` where its form allows none."""
    if ask.write is None:
        return speak(seed, limits)
    try:
        return speak_written(seed, limits, ask.write(seed))
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _request_id(ask: Ask, index: int) -> str:
    if ask.rid is None:
        return uuid.uuid4().hex
    return ask.rid if len(ask.prompts) * ask.sampling.n == 1 else f"{ask.rid}_{index}"
