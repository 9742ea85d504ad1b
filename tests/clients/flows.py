"""The flows that every client must pass, written once against what a client offers (`Client`).

Runs in the environment of the clients (`.venv-clients`), so it imports nothing of this project.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import time
import traceback
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

URL: Final = os.environ["CLIENTS_URL"]
METRICS: Final = os.environ["CLIENTS_METRICS"]
SIMULATED: Final = os.environ["CLIENTS_TARGET"] == "simulator"

QUESTION: Final = "What can you tell me about the sea and the sky?"
LONG: Final = "Tell me story 36059 about the sea, from its beginning to its end."
"""The simulated replica answers this one with at least 1443 tokens, which take longer than any flow waits."""
TOO_LARGE: Final = "word " * 20_000
"""More than `maxBodySize` of the fleet."""
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"is_near": {"type": "boolean"}, "unit": {"enum": ["metre", "mile"]}},
    "required": ["is_near", "unit"],
    "additionalProperties": False,
}
TOOL: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Accra", "Lima"]},
        "days": {"type": "integer", "enum": [1, 2, 7]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
"""Every argument has few values: a random model would write a string of any length."""
TOOL_NAME: Final = "weather"
TOOL_HELP: Final = "The weather of a city."
TURNS: Final = ("How warm is it?", "And tomorrow?", "And in the week after that?")
TURN_TOKENS: Final = 300
"""At most, of each answer in a conversation."""
FIRST_CHOICE: Final = "auto" if SIMULATED else "required"
"""The tool choice of a turn's first request. A random model calls a tool only if the request requires it."""
TOKENS: Final = 12
TRIES: Final = 1 if SIMULATED else 3
"""A random model may end an answer before a flow can cancel it."""
_NOTICED_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Access:
    """How a client reaches the fleet."""

    key: str = os.environ["CLIENTS_KEY"]
    model: str = os.environ["CLIENTS_MODEL"]
    retries: int = 0
    timeout_s: float = 60.0


LIMITED: Final = Access(key=os.environ["CLIENTS_LIMITED_KEY"])
"""Of a tenant that may send one request each three seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, as the client reports it."""

    texts: Sequence[str]
    """Of each choice."""
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def text(self) -> str:
        [text] = self.texts
        return text


@dataclass(slots=True)
class Weather:
    """The tool, and what it was called with."""

    calls: int = 0

    def __call__(self, city: str, days: int) -> str:
        assert isinstance(city, str) and isinstance(days, int), (city, days)
        self.calls += 1
        return "It will be 20 degrees."


class Client(ABC):
    """One API of one client: what flows need, in the client's own words."""

    name: ClassVar[str]
    package: ClassVar[str]
    api: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]] = {}
    """Flows that this client or its API does not have, with the reason."""
    errors: ClassVar[Mapping[str, type[BaseException]]]
    """Its own exceptions by flow."""
    statuses: ClassVar[Mapping[str, int]] = {}
    """Of those exceptions, where it differs from the router's."""
    invalid: ClassVar[Mapping[str, Any]] = {"top_p": 2.0}
    """Options of `ask` that get status 400."""

    def __init__(self, access: Access) -> None:
        self.access = access

    @abstractmethod
    def ask(self, prompt: str, **options: Any) -> Answer:
        """A whole answer. Options: max_tokens, stop (a list), n, schema, temperature, top_p."""

    @abstractmethod
    def stream(self, prompt: str, usage: list[Answer], **options: Any) -> Iterator[str]:
        """The pieces of an answer; appends its usage. Closing the iterator closes the stream."""

    def converse(self, turns: Sequence[str], tool: Weather) -> list[str]:
        """One conversation with the tool: the final text of each turn."""
        raise NotImplementedError


Flow = Callable[[type[Client]], None]


def whole(client: type[Client]) -> None:
    assert client(Access()).ask(QUESTION, max_tokens=TOKENS).text or not SIMULATED


def streamed(client: type[Client]) -> None:
    pieces = list(client(Access()).stream(QUESTION, [], max_tokens=TOKENS))
    assert len(pieces) > (3 if SIMULATED else 0), pieces
    text = client(Access()).ask(QUESTION, max_tokens=TOKENS).text
    assert not SIMULATED or "".join(pieces) == text, (pieces, text)


def usage(client: type[Client]) -> None:
    answer = client(Access()).ask(QUESTION, max_tokens=TOKENS)
    reported: list[Answer] = []
    for _ in client(Access()).stream(QUESTION, reported, max_tokens=TOKENS):
        pass
    [last] = reported
    assert last.input_tokens == answer.input_tokens > 10, (last, answer)
    for output in (last.output_tokens, answer.output_tokens):  # a random model may end early
        assert output == TOKENS or (not SIMULATED and 0 < output < TOKENS), output


def tools(client: type[Client]) -> None:
    tool = Weather()
    texts = client(Access()).converse(TURNS, tool)
    assert len(texts) == len(TURNS) and all(texts), texts
    assert tool.calls == len(TURNS) or (not SIMULATED and tool.calls > len(TURNS)), tool


def json_by_schema(client: type[Client]) -> None:
    given = json.loads(client(Access()).ask("Where is it?", schema=SCHEMA, max_tokens=200).text)
    assert given.keys() == {"is_near", "unit"} and isinstance(given["is_near"], bool), given
    assert given["unit"] in ("metre", "mile"), given


def stop(client: type[Client]) -> None:
    text = client(Access()).ask(QUESTION, max_tokens=TOKENS, temperature=0).text
    word = max(re.findall("[a-z]+", text), key=len)[-4:]
    cut = client(Access()).ask(QUESTION, max_tokens=TOKENS, temperature=0, stop=[word]).text
    assert cut == text[: text.index(word)], (text, word, cut)


def choices(client: type[Client]) -> None:
    texts = client(Access()).ask(QUESTION, max_tokens=TOKENS, n=3).texts
    assert len(texts) == 3 and all(texts), texts
    assert not SIMULATED or len(set(texts)) == 3, texts


def cancel(client: type[Client]) -> None:
    before = counted("client_gone")
    pieces = client(Access()).stream(LONG, [], max_tokens=2000)
    assert next(pieces) and next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    _wait_for("client_gone", before + 1)


def timeout(client: type[Client]) -> None:
    before = counted("client_gone")
    _raises(client, "timeout", Access(timeout_s=0.7), prompt=LONG, max_tokens=2000)
    _wait_for("client_gone", before + 1)


def bad_request(client: type[Client]) -> None:
    _raises(client, "400", Access(), **client.invalid)


def unknown_key(client: type[Client]) -> None:
    _raises(client, "401", Access(key="sk-wrong"))


def unknown_model(client: type[Client]) -> None:
    _raises(client, "404", Access(model="missing"))


def too_large(client: type[Client]) -> None:
    _raises(client, "413", Access(), prompt=TOO_LARGE)


def rate_limited(client: type[Client]) -> None:
    def several(access: Access) -> None:
        for _ in range(8):
            client(access).ask(QUESTION, max_tokens=2)

    _fails("429", client, lambda: several(LIMITED))


def retry_after(client: type[Client]) -> None:
    """With one retry only: a client that does not wait as long as `Retry-After` says fails."""
    before = counted("rate_limited")
    patient = client(replace(LIMITED, retries=1))
    for _ in range(2):
        patient.ask(QUESTION, max_tokens=2)
    refused = counted("rate_limited") - before
    assert refused, "no request was refused"


FLOWS: Final[Mapping[str, Flow]] = {
    "whole": whole,
    "streamed": streamed,
    "usage": usage,
    "tools": tools,
    "JSON": json_by_schema,
    "stop": stop,
    "n": choices,
    "cancel": cancel,
    "timeout": timeout,
    "400": bad_request,
    "401": unknown_key,
    "404": unknown_model,
    "413": too_large,
    "429": rate_limited,
    "Retry-After": retry_after,
}


def flows_to_run() -> Mapping[str, Flow]:
    """Those that the caller wants."""
    wanted = (os.environ.get("CLIENTS_FLOWS") or ",".join(FLOWS)).split(",")
    return {name: flow for name, flow in FLOWS.items() if name in wanted}


def run(*clients: type[Client]) -> None:
    """Every flow with every client; writes a JSON line for each."""
    for client in clients:
        for name, flow in flows_to_run().items():
            passed, detail = None, client.lacks.get(name, "")
            if not detail:
                passed, detail = _run_one(flow, client)
            report(client.name, client.package, client.api, name, passed=passed, detail=detail)


def report(
    name: str, package: str, api: str, flow: str, *, passed: bool | None, detail: str
) -> None:
    """One cell of the table."""
    version = importlib.metadata.version(package)
    line = {"client": name, "version": version, "api": api, "flow": flow}
    sys.stdout.write(json.dumps(line | {"passed": passed, "detail": detail}) + "\n")
    sys.stdout.flush()


def _run_one(flow: Flow, client: type[Client]) -> tuple[bool, str]:
    detail = ""
    for _ in range(TRIES):
        try:
            flow(client)
        except BaseException:
            detail = traceback.format_exc(limit=-2)
        else:
            return True, ""
    return False, detail


def _raises(
    client: type[Client], flow: str, access: Access, prompt: str = QUESTION, **options: Any
) -> None:
    _fails(flow, client, lambda: client(access).ask(prompt, **({"max_tokens": TOKENS} | options)))


def _fails(flow: str, client: type[Client], call: Callable[[], object]) -> None:
    wanted = client.errors[flow]
    try:
        call()
    except wanted as error:
        if flow.isdigit():
            found = getattr(error, "status_code", None)
            status = client.statuses.get(flow, int(flow))
            assert found == status, f"{wanted.__name__} has the status {found}"
        return
    raise AssertionError(f"no {wanted.__name__}")


def counted(code: str) -> int:
    """How many requests of this program's tenants ended with an error of this kind."""
    with urllib.request.urlopen(METRICS) as answer:
        lines = answer.read().decode().splitlines()
    tenants = os.environ["CLIENTS_TENANTS"].split(",")
    return sum(
        round(float(line.rsplit(" ", 1)[1]))
        for line in lines
        if line.startswith("evenkeel_router_request_error_total{")
        and f'error_code="{code}"' in line
        and any(f'tenant="{tenant}"' in line for tenant in tenants)
    )


def _wait_for(code: str, number: int) -> None:
    deadline = time.monotonic() + _NOTICED_S
    while counted(code) < number:
        assert time.monotonic() < deadline, f"the router counted no further {code}"
        time.sleep(0.1)
