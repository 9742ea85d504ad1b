"""Sends chat completions and reads their streams: time of the first token, end, and usage.

It parses only the events until the first text, and the last event. A load generator that spends more time on an event
than the router would measure itself.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

UNAUTHENTICATED: Final = 401
_READ_TIMEOUT_S: Final = 300.0
_CONNECT_TIMEOUT_S: Final = 10.0
_ERROR_CHARS: Final = 200
_TEXTS: Final = ("content", "reasoning_content", "reasoning", "tool_calls")
"""Members of a delta that a model's first token may be in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request to send."""

    client: str
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a request. Times are those of the caller's clock."""

    sent_s: float
    ended_s: float
    first_token_s: float | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    """Cause of a failure: `429`, `stream`, `connection`, …; None for a complete answer."""
    detail: str = ""
    """Message of the endpoint; empty for a complete answer."""


class SenderError(Exception):
    """The endpoint cannot be used; the message gives the reason."""


@dataclass(slots=True)
class Sender:
    """Sends requests to one endpoint."""

    url: str
    model: str
    session: aiohttp.ClientSession
    now: Callable[[], float]
    headers_of: Callable[[str], Mapping[str, str]]
    """The headers that identify a client."""
    force_length: bool = True
    """Request exactly `max_tokens` tokens (`ignore_eos`, a parameter of SGLang and vLLM)."""

    async def send(self, question: Question) -> Answer:
        """Send a request and read its whole answer. Raises only when it is cancelled."""
        reading = _Reading(self.now)
        sent_s = self.now()
        try:
            async with self.session.post(
                f"{self.url}/chat/completions",
                data=self._body(question),
                headers={"Content-Type": "application/json", **self.headers_of(question.client)},
            ) as response:
                if response.status != 200:
                    detail = _message(await response.read())
                    return self._failed(sent_s, str(response.status), detail)
                async for chunk in response.content.iter_any():
                    reading.feed(chunk)
        except TimeoutError:
            return self._failed(sent_s, "timeout", "", reading)
        except aiohttp.ClientError as error:
            return self._failed(sent_s, "connection", _connection_error(error), reading)
        if reading.error is not None or not reading.done:
            detail = reading.error or "the stream ended before its last event"
            return self._failed(sent_s, "stream", detail, reading)
        usage = reading.usage()
        return Answer(
            sent_s=sent_s,
            ended_s=self.now(),
            first_token_s=reading.first_s,
            input_tokens=_count(usage, "prompt_tokens"),
            cached_tokens=_count(_object(usage, "prompt_tokens_details"), "cached_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
        )

    def _body(self, question: Question) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": question.prompt}],
            "max_tokens": question.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.force_length:
            body["ignore_eos"] = True
        return json.dumps(body).encode()

    def _failed(
        self, sent_s: float, error: str, detail: str, reading: _Reading | None = None
    ) -> Answer:
        return Answer(
            sent_s=sent_s,
            ended_s=self.now(),
            first_token_s=reading.first_s if reading else None,
            error=error,
            detail=detail[:_ERROR_CHARS],
        )


@dataclass(slots=True)
class _Reading:
    """Reads a stream of server-sent events in chunks that may end anywhere."""

    now: Callable[[], float]
    first_s: float | None = None
    done: bool = False
    error: str | None = None
    _rest: bytes = b""
    _last: bytes = b""

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def usage(self) -> dict[str, Any]:
        """The usage in the last event; empty without one."""
        return _object(_json(self._last), "usage")

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = True
            if self.first_s is None:  # an answer without text
                self.first_s = self.now()
            return
        self._last = data
        if data.startswith(b'{"error"'):
            self.error = _message(data)
        elif self.first_s is None and _has_text(_json(data)):
            self.first_s = self.now()


def _has_text(event: dict[str, Any]) -> bool:
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict) and any(map(delta.get, _TEXTS)):
            return True
    return False


def _object(event: dict[str, Any], name: str) -> dict[str, Any]:
    value = event.get(name)
    return value if isinstance(value, dict) else {}


def _count(event: dict[str, Any], name: str) -> int:
    """A number of tokens; 0 if it is missing or invalid."""
    value = event.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _message(data: bytes) -> str:
    """The message of an OpenAI error body, or the first characters of another body."""
    message = _object(_json(data), "error").get("message")
    if isinstance(message, str):
        return message
    return data[:_ERROR_CHARS].decode(errors="replace")


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session without a limit of connections: the trace decides their number."""
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_READ_TIMEOUT_S
    )
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield session


def _connection_error(error: Exception) -> str:
    """The cause, without the settings of the library (`ssl:default`)."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"{error.host}:{error.port}: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        why = error.os_error.strerror or str(error.os_error)
        return f"cannot connect to {error.host}:{error.port}: {why}"
    return str(error) or type(error).__name__


async def served_model(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> str:
    """The first model that the endpoint serves; raises `SenderError`."""
    try:
        async with session.get(f"{url}/models", headers=headers) as response:
            data = await response.read()
            if response.status != 200:
                words = f"{url}/models: status {response.status}: {_message(data)}"
                if response.status == UNAUTHENTICATED:
                    words += f"\n{credentials_hint(named=bool(headers))}"
                raise SenderError(words)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise SenderError(f"{url} cannot be reached: {_connection_error(error)}") from error
    models = _json(data).get("data")
    for model in models if isinstance(models, list) else ():
        if isinstance(model, dict) and isinstance(model.get("id"), str):
            return str(model["id"])
    raise SenderError(f"{url}/models lists no model; use --model")


def credentials_hint(*, named: bool) -> str:
    """The remedy for a 401; `named`: the requests had a key or a client header."""
    if named:
        return "check that these are keys of the endpoint; --api-keys also accepts a file for `evenkeel up`"
    return (
        "identify the clients: use --api-keys FILE (a mapping from client to API key, or a file for "
        "`evenkeel up`), or --client-header for a router that trusts this machine"
    )


def api_root(url: str) -> str:
    """The URL that ends in `/v1`, which `url` may lack; raises `SenderError`."""
    if not url.startswith(("http://", "https://")):
        raise SenderError(f"{url!r} is not a URL like http://127.0.0.1:8080")
    root = url.rstrip("/")
    return root if root.endswith("/v1") else f"{root}/v1"
