"""Asking replicas for their tokenizer and chat template (contract `promptfacts`), where the configuration names none.

Each process of a replica is asked once, over its reports port; files travel only if the router lacks them. No request
waits for it: until the first answer, prompts are matched by their text.
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

from evenkeel_router.fleet.replicas import Replicas
from evenkeel_router.fleet.reports import reports_socket
from evenkeel_router.prefix.kv_follower import Prefixes
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.prefix.tokenised import most_reported
from evenkeel_router.settings import Settings

_log = logging.getLogger(__name__)
ANSWER_TIMEOUT_S: Final = 10.0  # of files of some megabytes, read from a disk
RETRY_S: Final = 30.0


class PromptFactsClient:
    """Asks every process once."""

    def __init__(
        self,
        settings: Settings,
        replicas: Replicas,
        prefixes: Prefixes,
        tokenising: Tokenisation,
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._prefixes = prefixes
        self._tokenising = tokenising
        self._context = zmq.asyncio.Context()
        self._reported: dict[str, tuple[str, PromptFacts]] = {}
        """Replica → the incarnation that answered, and its facts."""
        self._again_s: dict[str, float] = {}
        """Replica that did not answer → when to ask it again."""
        self._files: dict[str, PromptFacts] = {}
        """Answers with all their files, by digest."""

    async def run(self) -> None:
        """Ask every new process, use what most report, until cancelled."""
        try:
            while True:
                if self._tokenising.asks:
                    await self._ask_new()
                    await self._follow()
                await asyncio.sleep(self._settings.timing.report_interval_s)
        finally:
            self._context.destroy(linger=0)

    async def _ask_new(self) -> None:
        now_s, replicas = asyncio.get_running_loop().time(), self._replicas
        for name in self._reported.keys() - replicas.configured.keys():
            del self._reported[name]
        waiting = []
        for replica in replicas.configured.values():
            seen = replicas.reports.get(replica.name)
            if seen is None or now_s < self._again_s.get(replica.name, 0.0):
                continue
            if (
                replica.name not in self._reported
                or self._reported[replica.name][0] != seen.incarnation
            ):
                waiting.append(self._ask(replica, seen.incarnation))
        await asyncio.gather(*waiting)

    async def _ask(self, replica: ReplicaConfig, incarnation: str) -> None:
        try:
            facts = await self._answer(replica)
        except (ReportError, TimeoutError, zmq.ZMQError) as error:
            now_s = asyncio.get_running_loop().time()
            if replica.name not in self._again_s:
                why = str(error) or "it does not answer: its plug-in is older than this router"
                _log.warning("replica %s does not report its tokenizer: %s", replica.name, why)
            self._again_s[replica.name] = now_s + RETRY_S
            return
        self._again_s.pop(replica.name, None)
        if facts.files or facts.simulated or facts.trouble:
            self._files[facts.digest] = facts
        self._reported[replica.name] = (incarnation, facts)

    async def _answer(self, replica: ReplicaConfig) -> PromptFacts:
        """Raises `ReportError`, `TimeoutError`, `zmq.ZMQError`."""
        current = self._tokenising.digest
        known = current if current in self._files else ""
        with reports_socket(self._context, replica, max_bytes=MAX_FACTS_BYTES) as socket:
            await socket.send(ask(known))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                frames: list[bytes] = await socket.recv_multipart()
        return decode_facts(frames[-1])

    async def _follow(self) -> None:
        digests = {name: facts.digest for name, (_, facts) in self._reported.items()}
        current = self._tokenising.digest
        digest = most_reported(digests, current)
        for other in self._files.keys() - digests.values():
            del self._files[other]
        if digest and digest != current and digest in self._files:
            await self._tokenising.adopt(self._files[digest])
        elif not digest and not current and not self._prefixes.untokenised.error:
            await self._tokenising.use(None, "no replica has reported its tokenizer")
