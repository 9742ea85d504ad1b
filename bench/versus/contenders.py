"""The contenders: how each starts, and how a request is sent through it. Engines, routers and LiteLLM's proxy are processes.

All have the same two engines. What stands in front of unmodified engines, except LiteLLM and Evenkeel's gate, is a rule of `policies`
in the sending process itself.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import aiohttp
import yaml
from evenkeel_cli.replay.sender import Answer, Question, Sender, open_session
from evenkeel_cli.up import ports
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_fairshare.fleet.contract import NOTHING, Dispatch, replica_set
from evenkeel_fairshare.prefix.index import PrefixIndex, text_blocks
from evenkeel_simulator.engine.profiles import PROFILES

from bench.gate_load import MODEL, routers
from bench.gpu.engine import HOST, await_ready, launch, stop
from bench.versus.policies import CONCURRENCY, FEW, KeyLimits, TurnQueues, WeightedScores
from bench.versus.workloads import CASES, ENGINES, PROFILE, TEAMS, capacity

Clock: TypeAlias = Callable[[], float]
Send: TypeAlias = Callable[[Question], Awaitable[Answer]]
REFUSED: Final = "429"
_START_S: Final = 240.0
_CHARS_PER_TOKEN: Final = 4
"""Characters of a token in the prompts that this program writes. Only the ratio of matched to all tokens counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What it is, and what orders the queue inside of its engines."""

    title: str
    about: str
    engine_policy: str = "FCFS"
    places: int = 0
    """Requests that each engine holds before the queues in front of them fill; 0: no such queues."""
    reports: bool = False
    """Whether its engines have Evenkeel's plug-in, which reports to the router."""


EVENKEEL: Final = "evenkeel"
GATE: Final = "gate"
LITELLM: Final = "litellm"
TURNS: Final = "turns"
LIMITS: Final = "limits"
CONTENDERS: Final = {
    "fcfs": Contender(
        title="order of arrival",
        about="Engines serve first come, first served, the default of vLLM and SGLang. Requests go to an engine by llm-d's weighted sum of cached "
        "prefix, queue and free memory.",
    ),
    "lpm": Contender(
        title="longest prefix first",
        about="Engines serve the longest cached prefix first, SGLang's option `lpm`. Routing as above.",
        engine_policy="LPM",
    ),
    LIMITS: Contender(
        title="limits per key",
        about="Each team may use its share of the capacity in tokens per minute, counted when an answer ends, and gets 429 above. "
        "Engines and routing as for the order of arrival.",
    ),
    LITELLM: Contender(
        title="LiteLLM",
        about="LiteLLM's proxy, a process of its own, with `dynamic_rate_limiter_v3`, the capacity as the model's tokens per minute, and "
        "each team's share as the reservation of its priority. Engines serve first come, first served; LiteLLM chooses one at random (`simple-shuffle`, its default).",
    ),
    TURNS: Contender(
        title="turns by request",
        about=f"A queue for each team in front of the engines, served in turns, a request each, while the engines hold fewer than {CONCURRENCY} "
        "requests each: the rules of llm-d's flow control, written for this comparison. Engines and routing as for the order of arrival.",
        places=CONCURRENCY,
    ),
    "turns-8": Contender(
        title="turns (8 places)",
        about=f"The same with {FEW} requests at each engine instead of {CONCURRENCY}: shorter queues inside of the engines, smaller batches.",
        places=FEW,
    ),
    GATE: Contender(
        title="Evenkeel, gate",
        about="Evenkeel's router with its gate (`queue: Auto`), a process of its own, before engines with the order of arrival.",
    ),
    EVENKEEL: Contender(
        title="Evenkeel",
        about="Evenkeel's router with D2LPM, a process of its own, before engines whose plug-in runs DLPM.",
        engine_policy="DLPM",
        reports=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Engines:
    """Two running engines."""

    urls: tuple[str, ...]
    reports: tuple[str | None, ...]
    process: subprocess.Popen[bytes]
    log: Path

    def await_ready(self) -> None:
        """Wait until both answer; raises `EngineError`."""
        await_ready(self.process, f"{self.urls[-1]}/ready", log=self.log, limit_s=_START_S)


@contextmanager
def engines(contender: Contender, folder: Path) -> Iterator[Engines]:
    """The contender's engines, which may not be ready yet."""
    http = [ports.free_port(HOST) for _ in range(ENGINES)]
    reports = [ports.free_port(HOST) for _ in range(ENGINES)] if contender.reports else []
    words = [f"--policy={contender.engine_policy}", "--samples", str(folder / "samples")]
    words += ["--ports", *map(str, http)]
    words += ["--reports-ports", *map(str, reports)] if reports else []
    log = folder / "engines.log"
    process = launch((sys.executable, "-m", "bench.versus.engines", *words), os.environ, log=log)
    urls = tuple(f"http://{HOST}:{port}" for port in http)
    told = tuple(f"tcp://{HOST}:{port}" for port in reports) if reports else (None,) * ENGINES
    try:
        yield Engines(urls, told, process, log)
    finally:
        stop(process)


@contextmanager
def _litellm(case: str, running: Engines, folder: Path, program: Path) -> Iterator[str]:
    """LiteLLM's proxy; its address."""
    port = ports.free_port(HOST)
    each = int(capacity(case).tokens_per_min / ENGINES)
    config = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {
                    "model": f"openai/{MODEL}",
                    "api_base": f"{url}/v1",
                    "api_key": "none",
                    "tpm": each,
                },
            }
            for url in running.urls
        ],
        "litellm_settings": {
            "callbacks": ["dynamic_rate_limiter_v3"],
            "priority_reservation": {team: CASES[case].share(team) for team in TEAMS},
            "telemetry": False,
        },
        "general_settings": {
            "master_key": "os.environ/LITELLM_MASTER_KEY",
            "custom_auth": "litellm_keys.authenticate",
        },
    }
    file, log = folder / "litellm.yaml", folder / "litellm.log"
    file.write_text(yaml.safe_dump(config))
    shutil.copy(Path(__file__).with_name("litellm_keys.py"), folder)
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "NO_PROXY": HOST,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(24)}",
        "LITELLM_LOG": "CRITICAL",
    }
    words = (str(program), "--config", str(file), "--host", HOST, "--port", str(port))
    url = f"http://{HOST}:{port}"
    process = launch(words, environment, log=log)
    try:
        await_ready(process, f"{url}/health/liveliness", log=log, limit_s=_START_S)
        yield url
    finally:
        stop(process)


@contextmanager
def in_front(
    name: str, case: str, running: Engines, folder: Path, *, litellm: Path
) -> Iterator[str | None]:
    """The process before the engines, ready; its address, None where this process sends to the engines itself."""
    with ExitStack() as stack:
        if name == LITELLM:
            yield stack.enter_context(_litellm(case, running, folder, litellm))
        elif name in (EVENKEEL, GATE):
            queue = QueueOwner.ENGINE if name == EVENKEEL else QueueOwner.AUTO
            replicas = dict(zip(running.urls, running.reports, strict=True))
            weights = CASES[case].weights
            [router] = stack.enter_context(routers(queue, replicas, folder, weights=weights))
            yield router.url
        else:
            yield None


@asynccontextmanager
async def sending(
    name: str, case: str, running: Engines, *, url: str | None, now: Clock
) -> AsyncIterator[Send]:
    """How a question is sent through the contender."""
    async with open_session() as session:
        if url is not None:
            yield _sender(url, session, now).send
            return
        direct = Direct([_sender(one, session, now) for one in running.urls])
        if name == LIMITS:
            most = capacity(case).tokens_per_min
            limits = {team: most * CASES[case].share(team) for team in TEAMS}
            yield Limited(direct.send, KeyLimits(limits), now).send
        elif places := CONTENDERS[name].places:
            yield InTurns(direct.send, TurnQueues(places * ENGINES)).send
        else:
            yield direct.send


def _sender(url: str, session: aiohttp.ClientSession, now: Clock) -> Sender:
    return Sender(
        url=f"{url}/v1",
        model=MODEL,
        session=session,
        now=now,
        headers_of=lambda team: {"Authorization": f"Bearer {team}"},
    )


class Direct:
    """Sends to the engine that `WeightedScores` chooses."""

    def __init__(self, senders: list[Sender]) -> None:
        self._senders = senders
        self._policy = WeightedScores(PROFILES[PROFILE].kv_tokens)
        self._index = PrefixIndex()
        self._open = [0] * len(senders)
        self._all = replica_set(range(len(senders)))

    async def send(self, question: Question) -> Answer:
        """Choose, send, and note the end."""
        blocks = text_blocks(question.prompt)
        depth, longest = self._index.match(blocks, self._all)
        each = 256 // _CHARS_PER_TOKEN

        def matched_at(slot: int) -> int:
            return self._index.match(blocks, replica_set([slot]))[0] * each

        request = Dispatch(
            client=question.client,
            input_tokens=max(1, len(question.prompt) // _CHARS_PER_TOKEN),
            longest=longest,
            matched_tokens=depth * each,
            matched_at=matched_at,
        )
        slot = self._policy.select(request, self._all, self._open)
        assert slot is not None
        self._policy.dispatched(request, slot)
        self._index.insert(blocks, slot)
        self._open[slot] += 1
        try:
            return await self._senders[slot].send(question)
        finally:
            self._open[slot] -= 1
            self._policy.finished(request, slot, NOTHING)


class Limited:
    """Refuses what `KeyLimits` does not admit."""

    def __init__(self, send: Send, limits: KeyLimits, now: Clock) -> None:
        self._send = send
        self._limits = limits
        self._now = now

    async def send(self, question: Question) -> Answer:
        """Send, or refuse at once."""
        now_s = self._now()
        if not self._limits.admits(question.client, now_s):
            return Answer(sent_s=now_s, ended_s=now_s, error=REFUSED)
        answer = await self._send(question)
        tokens = answer.input_tokens + answer.output_tokens
        self._limits.count(question.client, tokens, self._now())
        return answer


class InTurns:
    """Holds requests in `TurnQueues`."""

    def __init__(self, send: Send, queues: TurnQueues[asyncio.Future[None]]) -> None:
        self._send = send
        self._queues = queues

    async def send(self, question: Question) -> Answer:
        """Wait for the request's turn, then send."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.arrive(question.client, turn)
        self._begin()
        await turn
        try:
            return await self._send(question)
        finally:
            self._queues.ended()
            self._begin()

    def _begin(self) -> None:
        while (turn := self._queues.next()) is not None:
            if turn.cancelled():  # the run is over
                self._queues.ended()
            else:
                turn.set_result(None)
