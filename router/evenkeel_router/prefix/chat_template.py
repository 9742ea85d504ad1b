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
SILENT_S: Final = 2.0
"""Silence after which a process is killed: several times the CPU time of the longest rendering."""
START_S: Final = 10.0
"""Silence after which a new process is killed: it imports jinja2 and compiles the templates, and the machine may be busy."""
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
        self._is_closed = False
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Compile the templates. Raises `TemplateError`."""
        if self.names:
            async with self._turn:
                await self._started()

    async def close(self) -> None:
        """End the process, and start no other one: conversations may still wait for their turn."""
        self._is_closed = True
        await self._end()

    async def _end(self) -> None:
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
            status, text = await self._exchange(process, self._frame(name, chat), SILENT_S)
        except TemplateError as error:
            raise UntokenisedError(Reason.TEMPLATE, str(error)) from error
        finally:
            self._turn.release()
        if status != DONE:
            raise UntokenisedError(Reason.TEMPLATE, _DETAILS.get(status, ""))
        return text

    def _frame(self, name: str, chat: Chat) -> bytes:
        variables: dict[str, Any] = {
            "messages": for_template(chat, keeps_parts=name in self._keeps_parts),
            "tools": chat.tools,
            "documents": None,
            "add_generation_prompt": True,
        }
        allowed_s = min(LONGEST_S, SMALL_S + PER_BYTE_S * chat.size_bytes)
        try:
            return pickle.dumps((name, variables | chat.options, allowed_s))
        except RecursionError as error:  # a client nests tools or options hundreds of levels deep
            raise TemplateError("the conversation is nested too deeply") from error

    async def _started(self) -> Process:
        """The process, a new one if the last one ended. Raises `TemplateError`."""
        if self._is_closed:
            raise TemplateError("another model's templates are in use")
        if self._process is not None:
            return self._process
        # By its path and isolated: it needs jinja2, and imports no package of the router.
        command = (sys.executable, "-I", str(Path(template_worker.__file__)))
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        except OSError as error:  # a limit of processes or of memory
            raise TemplateError(f"no process can be started: {error.strerror}") from error
        self._process = process
        try:
            status, text = await self._exchange(process, self._first_frame, START_S)
            if status != DONE:
                raise TemplateError(_DETAILS.get(status, text))
        except BaseException:  # a start that is cancelled leaves no process either
            await self._end()
            raise
        self._keeps_parts = frozenset(json.loads(text))
        return process

    async def _exchange(self, process: Process, frame: bytes, silent_s: float) -> tuple[bytes, str]:
        """Status and text of the answer. Raises `TemplateError` if none comes within `silent_s`."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(silent_s):
                process.stdin.write(len(frame).to_bytes(SIZE_BYTES) + frame)
                await process.stdin.drain()
                size = int.from_bytes(await process.stdout.readexactly(SIZE_BYTES))
                answer = await process.stdout.readexactly(size)
        except (OSError, EOFError, TimeoutError) as error:  # most likely the kernel ended it
            await self._end()
            _log.info(
                "the process that renders chat templates ended; the next conversation starts one"
            )
            raise TemplateError(TOO_LONG) from error
        if answer[:1] == template_worker.TOO_MUCH:  # it ends by itself
            await self._end()
        return answer[:1], answer[1:].decode(errors="surrogatepass")
