"""Asking replicas what they make tokens with (contract `promptfacts`), where the configuration does not say it.

Place in the flow: replica → **facts** → tokenising. Each process of a replica is asked once, over its reports port; the
files travel only if the router does not hold them yet. Nobody waits: until somebody has answered, prompts are
matched by their text.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import zmq
import zmq.asyncio
from evenkeel_contract.promptfacts import MAX_FACTS_BYTES, PromptFacts, ask, decode_facts
from evenkeel_contract.reports import ReportError
from evenkeel_contract.routerconfig import ReplicaConfig

from evenkeel_router.prefix.agreement import followed
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.state import RouterState

_log = logging.getLogger(__name__)
ANSWER_TIMEOUT_S: Final = 10.0  # of files of some megabytes, read from a disk
RETRY_S: Final = 30.0


class PromptFactsClient:
    """Asks, for ever."""

    def __init__(self, state: RouterState, tokenising: Tokenisation) -> None:
        self._state = state
        self._tokenising = tokenising
        self._context = zmq.asyncio.Context()
        self._told: dict[str, tuple[str, PromptFacts]] = {}
        """By replica: the incarnation that told, and what."""
        self._again_s: dict[str, float] = {}
        """When to ask those again that did not answer."""
        self._files: dict[str, PromptFacts] = {}
        """Answers with all their files, by digest."""

    async def run(self) -> None:
        """Ask whoever is new, follow most of them, until cancelled."""
        try:
            while True:
                if self._tokenising.asks:
                    await self._ask_new()
                    await self._follow()
                await asyncio.sleep(self._state.timing.report_interval_s)
        finally:
            self._context.destroy(linger=0)

    async def _ask_new(self) -> None:
        state, now_s = self._state, asyncio.get_running_loop().time()
        for name in self._told.keys() - state.replicas.keys():
            del self._told[name]
        waiting = []
        for replica in state.replicas.values():
            seen = state.reports.get(replica.name)
            if seen is None or now_s < self._again_s.get(replica.name, 0.0):
                continue
            if replica.name not in self._told or self._told[replica.name][0] != seen.incarnation:
                waiting.append(self._ask(replica, seen.incarnation))
        await asyncio.gather(*waiting)

    async def _ask(self, replica: ReplicaConfig, incarnation: str) -> None:
        try:
            facts = await self._answer(replica)
        except (ReportError, TimeoutError, zmq.ZMQError) as error:
            now_s = asyncio.get_running_loop().time()
            if replica.name not in self._again_s:
                why = str(error) or "it does not answer: its plug-in is older than this router"
                _log.warning(
                    "replica %s does not say what it makes tokens with: %s", replica.name, why
                )
            self._again_s[replica.name] = now_s + RETRY_S
            return
        self._again_s.pop(replica.name, None)
        if facts.files or facts.simulated or facts.trouble:
            self._files[facts.digest] = facts
        self._told[replica.name] = (incarnation, facts)

    async def _answer(self, replica: ReplicaConfig) -> PromptFacts:
        """Raises `ReportError`, `TimeoutError`, `zmq.ZMQError`."""
        current = self._tokenising.digest
        known = current if current in self._files else ""
        with self._context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_FACTS_BYTES)
            socket.connect(replica.reports or "")
            await socket.send(ask(known))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                frames: list[bytes] = await socket.recv_multipart()
        return decode_facts(frames[-1])

    async def _follow(self) -> None:
        told = {name: facts.digest for name, (_, facts) in self._told.items()}
        current = self._tokenising.digest
        digest = followed(told, current)
        for other in self._files.keys() - told.values():
            del self._files[other]
        if digest and digest != current and digest in self._files:
            await self._tokenising.adopt(self._files[digest])
        elif not digest and not current and not self._state.untokenised.trouble:
            self._tokenising.use(None, "no replica has said what it makes tokens with")
