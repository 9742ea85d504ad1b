"""Whatever replicas do, in whatever order: every request ends, once, in a way that its client can read."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, NamedTuple

import httpx
from evenkeel_contract.key import decode
from evenkeel_contract.routerconfig import LimitsConfig, ReplicaConfig
from evenkeel_router.app import running
from evenkeel_router.transport.upstream import (
    BrokenError,
    ConnectError,
    Exchange,
    Outgoing,
    SilenceError,
    UpstreamError,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, headers_of, replicas
from tests.support.nasty import DONE, EVENT, OK, USAGE
from tests.support.routers import MODEL, QUICK, config_for, routable, until

FAILURES: list[UpstreamError] = [BrokenError("reset"), SilenceError("silent")]


class Api(NamedTuple):
    """One API: a request, and how a replica answers it."""

    path: str
    body: dict[str, Any]
    event: bytes
    streamed: bytes


COMPLETIONS = Api(
    "/v1/completions", {"model": MODEL, "prompt": "x"}, EVENT, EVENT + EVENT + USAGE + DONE
)
TEXT = b'event: content_block_delta\ndata: {"delta":{"text":"a"}}\n\n'
MESSAGES = Api(
    "/v1/messages",
    {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]},
    TEXT,
    b'event: message_start\ndata: {"message":{"usage":{"input_tokens":5}}}\n\n' + TEXT
    + b'event: message_delta\ndata: {"usage":{"output_tokens":1}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
)  # fmt: skip


@st.composite
def streams(draw: st.DrawFn, api: Api) -> FakeReply:
    """A stream, right or garbled, cut anywhere, which may break at any point."""
    garbled = [api.event + b"garbage\n\n", b"\xff", api.event, b""]
    data = draw(st.sampled_from([api.streamed, api.streamed, *garbled]))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    ends = zip([0, *cuts], [*cuts, len(data)], strict=True)
    parts: list[bytes | UpstreamError] = [data[start:end] for start, end in ends]
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), draw(st.sampled_from(FAILURES)))
    return FakeReply(parts, content_type="text/event-stream")


WHOLE = st.builds(
    lambda body, status: FakeReply([body], status=status),
    st.sampled_from([OK, OK, b"{", b"", b"\xff"]),
    st.sampled_from([200, 200, 200, 400, 401, 404, 500, 503, 302]),
)


def scripts(api: Api) -> st.SearchStrategy[tuple[Api, list[FakeReply | UpstreamError]]]:
    """The API, and the answers of replicas to one request."""
    answers = st.one_of(
        streams(api), WHOLE, st.sampled_from(FAILURES), st.just(ConnectError("refused"))
    )
    return st.tuples(st.just(api), st.lists(answers, max_size=4))


class Scripted(FakeUpstream):
    """Gives the answers of a script, one to each connection, whoever is asked; at its end all is well."""

    def __init__(self, api: Api, script: list[FakeReply | UpstreamError]) -> None:
        FakeUpstream.__init__(self, self._next)
        self._api = api
        self._script = script
        self.refusals = 0

    async def connect(self, replica: ReplicaConfig) -> Exchange:
        if self._script and isinstance(self._script[0], ConnectError):
            self.refusals += 1
            raise ConnectError(str(self._script.pop(0)))
        return await FakeUpstream.connect(self, replica)

    def _next(self, replica: ReplicaConfig, request: Outgoing) -> FakeReply | UpstreamError:
        if self._script:
            return self._script.pop(0)
        if b'"stream":true' in request.body:
            return FakeReply([self._api.streamed], content_type="text/event-stream")
        return FakeReply([OK])


@examples(60)
@given(st.sampled_from([COMPLETIONS, MESSAGES]).flatmap(scripts), st.booleans())
def test_every_request_ends_once_and_leaves_nothing_behind(
    case: tuple[Api, list[FakeReply | UpstreamError]], stream: bool
) -> None:
    api, script = case
    fresh = [replace(a, _position=0) if isinstance(a, FakeReply) else a for a in script]
    asyncio.run(_one_request(api, Scripted(api, fresh), stream=stream))


async def _one_request(api: Api, upstream: Scripted, *, stream: bool) -> None:
    config = config_for(*replicas(3), limits=LimitsConfig(max_attempts=3, queue_timeout_s=5.0))
    async with (
        running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router,
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        await routable(router, 3)
        body = api.body | ({"stream": True} if stream else {})
        response = await client.post(api.path, json=body)
        rooms = router.rooms
        await until(lambda: not rooms.intake.admission.running, "the request to be over")
        assert not any(rooms.replicas.fleet.outstanding)
        assert (
            len(rooms.replicas.wait_queue),
            len(rooms.intake.active_requests),
            rooms.intake.body_memory.used_bytes,
        ) == (
            0,
            0,
            0,
        )

        asked = [headers_of(request)["x-smg-routing-key"] for _, request in upstream.asked]
        assert len(asked) <= 3
        if not upstream.refusals:  # else all may be lost, and the first to come back is a new one
            assert len({name for name, _ in upstream.asked}) == len(asked)
        flags = [decode(key).retried_by_fleet for key in asked]
        assert flags == sorted(flags)  # not after a refusal, for which nothing was computed
        assert not any(flags[:1])
        assert upstream.closed == len(asked)
        _check(response, api, stream=stream)
        (totals,) = rooms.totals.clients()
        failed = response.status_code != 200 or b'"error"' in response.content
        assert sum(totals.errors.values()) == failed


def _check(response: httpx.Response, api: Api, *, stream: bool) -> None:
    """A client can make sense of it."""
    if response.status_code != 200:
        assert response.status_code in (400, 404, 502, 503, 504)
        error = response.json()["error"]
        if response.status_code >= 500 and api is COMPLETIONS:
            assert error["code"] in ("replica_failed", "replica_timeout", "overloaded")
        elif response.status_code >= 500:
            assert error["type"] in ("api_error", "timeout_error", "overloaded_error")
    elif not stream:
        assert response.content == OK
    else:
        *events, rest = response.content.split(b"\n\n")
        assert rest == b""
        contents = [event.split(b"data: ")[1] for event in events]
        assert all(json.loads(content) for content in contents[:-1])
        ended = contents[-1] == b"[DONE]" or b"message_stop" in contents[-1]
        broke = not ended and "error" in json.loads(contents[-1])
        assert ended or broke
        assert sum(b'"error":' in content for content in contents) == broke
