"""A model's chat templates, rendered by a process of their own (`template_worker`).

A template is a program, and a client chooses its input. So the kernel bounds what it may use: a rendering that takes too
long or makes too much ends, or its process does, and the next conversation gets a new process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from evenkeel_router.prefix import template_worker
from evenkeel_router.prefix.prompts import Chat, for_template
from evenkeel_router.prefix.template_worker import DONE, SIZE_BYTES
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError

_log = logging.getLogger(__name__)
SMALL_S: Final = 0.005
"""CPU time that any conversation may take; a usual one takes a tenth of it."""
PER_BYTE_S: Final = 2e-6
"""CPU time beyond `SMALL_S` for each byte of the request. A megabyte of text is rendered in a few milliseconds."""
LONGEST_S: Final = 0.5
"""CPU time that no conversation may exceed: the time in which the longest prompt is tokenised."""
BUSY_S: Final = 0.1
"""Longest wait for the conversations before; one that would wait longer is matched by its text."""
SILENT_S: Final = 10.0
"""Silence after which a process is killed: its machine is far too busy, or something else is wrong."""
TOO_LONG: Final = "the chat template takes too long"
TOO_MUCH: Final = "the chat template makes too much text"
_DETAILS: Final = {template_worker.TOO_LONG: TOO_LONG, template_worker.TOO_MUCH: TOO_MUCH}


class TemplateError(ValueError):
    """A template is invalid; the message gives the reason."""


class ChatTemplates:
    """The templates of one model, by name. One conversation at a time is rendered."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.names = frozenset(sources)
        self._first_frame = pickle.dumps((dict(sources), dict(special_tokens)))
        self._keeps_parts: frozenset[str] = frozenset()
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Compile the templates. Raises `TemplateError`."""
        if self.names:
            async with self._turn:
                await self._started()

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def render(self, name: str, chat: Chat) -> str:
        """The prompt's text, without what `answer_begins`. Raises `UntokenisedError`."""
        rendering = asyncio.create_task(self._render(name, chat))
        # A client that leaves must not end the exchange halfway: the process would end with it.
        rendering.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(rendering)

    async def _render(self, name: str, chat: Chat) -> str:
        try:
            async with asyncio.timeout(BUSY_S):
                await self._turn.acquire()
        except TimeoutError as error:
            raise UntokenisedError(Reason.BUSY) from error
        try:
            process = await self._started()
            variables: dict[str, Any] = {
                "messages": for_template(chat, keeps_parts=name in self._keeps_parts),
                "tools": chat.tools,
                "documents": None,
                "add_generation_prompt": True,
            }
            allowed_s = min(LONGEST_S, SMALL_S + PER_BYTE_S * chat.size_bytes)
            frame = pickle.dumps((name, variables | chat.options, allowed_s))
            status, text = await self._exchange(process, frame)
        except TemplateError as error:
            raise UntokenisedError(Reason.TEMPLATE, str(error)) from error
        finally:
            self._turn.release()
        if status != DONE:
            raise UntokenisedError(Reason.TEMPLATE, _DETAILS.get(status, ""))
        return text

    async def _started(self) -> Process:
        if self._process is None:
            # By its path and isolated: it needs jinja2, and imports no package of the router.
            program = str(Path(template_worker.__file__))
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", program, stdin=PIPE, stdout=PIPE
            )
            status, text = await self._exchange(self._process, self._first_frame)
            if status != DONE:
                await self.close()
                raise TemplateError(_DETAILS.get(status, text))
            self._keeps_parts = frozenset(json.loads(text))
        return self._process

    async def _exchange(self, process: Process, frame: bytes) -> tuple[bytes, str]:
        """Status and text of the answer."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(SILENT_S):
                process.stdin.write(len(frame).to_bytes(SIZE_BYTES) + frame)
                await process.stdin.drain()
                size = int.from_bytes(await process.stdout.readexactly(SIZE_BYTES))
                answer = await process.stdout.readexactly(size)
        except (OSError, EOFError, TimeoutError) as error:  # most likely the kernel ended it
            await self.close()
            _log.warning("the process that renders chat templates ended; the next one starts")
            raise TemplateError(TOO_LONG) from error
        if answer[:1] == template_worker.TOO_MUCH:
            await self.close()
        return answer[:1], answer[1:].decode(errors="surrogatepass")
