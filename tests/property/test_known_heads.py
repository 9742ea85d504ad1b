"""A head that came before is read as its first time: connections with and without the table of heads see the same requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from evenkeel_router.transport.client_connection import ClientConnection
from evenkeel_router.transport.client_request import Answer, CompleteReply, Request
from evenkeel_router.transport.connection_shares import ConnectionShares
from evenkeel_router.transport.known_heads import MAX_HEAD_BYTES, MAX_HEADS, KnownHeads
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict

Seen = list[tuple[Any, ...]]


class _Unknown(KnownHeads):
    """Every head is parsed."""

    def find(self, data: bytes) -> None:
        return None


class _Counted(KnownHeads):
    found = 0

    def find(self, data: bytes) -> Any:
        known = super().find(data)
        self.found += known is not None
        return known


async def _read(heads: KnownHeads, reads: list[bytes]) -> Seen:
    """What the handler of a connection sees; its requests are answered at once."""
    seen: Seen = []

    async def handle(request: Request) -> Answer:
        try:
            body = b"".join([piece async for piece in request.body])
        except Exception as error:  # noqa: BLE001 - compared
            body = str(type(error)).encode()
        items = sorted((name.lower(), value) for name, value in request.headers.items())
        seen.append((request.method, request.target, items, body, request.keep_alive))
        seen.append((request.chunks_allowed, request.content_length, request.has_body))
        return CompleteReply(request, status=200, body=b"", close=not request.keep_alive)

    def refuse(request: Request, error: BaseException) -> Answer:
        seen.append((type(error), str(error)))
        return CompleteReply(request, status=400, body=b"", close=True)

    owner: Any = SimpleNamespace(
        handle=handle, refuse=refuse, keep_alive_s=lambda: 60.0, unread_s=lambda: 60.0, head_timeout_s=60.0,
        shares=ConnectionShares(lambda: 16), heads=heads, connected=lambda one: None, disconnected=lambda one: None,
    )  # fmt: skip
    connection = ClientConnection(owner)
    for data in reads:
        connection.data_received(data)
        for _ in range(4):
            await asyncio.sleep(0)
    if connection.task is not None:
        connection.task.cancel()
        await asyncio.sleep(0)
    return seen


def _head(line: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join((line, b"Host: a.example", *headers)) + b"\r\n"


_LINES = (b"POST /v1/chat/completions HTTP/1.1", b"PUT /x?ength: HTTP/1.1", b"POST /v1 HTTP/1.0")
_OTHERS = (
    b"Authorization: Bearer one", b"authorization: Bearer two", b"X-Length: 3", b"Expect: 100-continue", b"Connection: close",
    b"Transfer-Encoding: chunked", b"Upgrade: h2c\r\nConnection: upgrade", b"Content-Length: 3", b"X-Name: \xff", b"Connection: keep-alive",
)  # fmt: skip
_NAMES = (b"Content-Length: ", b"content-length: ", b"CONTENT-LENGTH: ", b"Content-Length:", b"Content-length:  ")  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request, or what looks like one."""
    headers = draw(st.lists(st.sampled_from(_OTHERS[:2]), max_size=1))
    headers += draw(st.just([]) | st.lists(st.sampled_from(_OTHERS), max_size=2))
    body = draw(st.sampled_from((b"", b"{}", b'{"a": "ength: 1\r\n\r\n"}', b"x" * 12)))
    number = len(body) + draw(st.sampled_from((0, 0, 0, 0, 0, 1, -1)))
    digits = draw(st.sampled_from((b"%d", b"%d", b"%d", b"%d", b"0%d", b"+%d", b"%d "))) % number
    length = draw(st.sampled_from(_NAMES[:2]) | st.sampled_from(_NAMES)) + digits
    if draw(st.sampled_from((True,) * 9 + (False,))):
        headers.insert(draw(st.integers(0, len(headers))), length)
    line = draw(st.sampled_from((_LINES[0], *_LINES)))
    return _head(line, *headers) + b"\r\n" + body


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """The reads of one connection: requests that come again, some of them cut or together."""
    some = draw(st.lists(requests(), min_size=1, max_size=3))
    reads: list[bytes] = []
    for data in draw(st.lists(st.sampled_from(some), min_size=2, max_size=8)):
        match draw(st.sampled_from(("whole", "whole", "whole", "cut", "joined"))):
            case "cut":
                at = draw(st.integers(1, len(data) - 1))
                reads += [data[:at], data[at:]]
            case "joined" if reads:
                reads[-1] += data
            case _:
                reads.append(data)
    return reads


_LENGTH = b"Content-Length: 2"
_CHAT = _head(_LINES[0], _OTHERS[0], _LENGTH) + b"\r\n{}"
_LENGTH_FIRST = [_head(_LINES[0], _LENGTH, key) + b"\r\n{}" for key in _OTHERS[:2]]
_CLOSING = _head(_LINES[0], _LENGTH, b"Connection: close") + b"\r\n{}"
_OLD = _head(_LINES[2], _LENGTH, b"Connection: keep-alive") + b"\r\n{}"
_OTHER = _head(b"PUT /other HTTP/1.1", _LENGTH) + b"\r\n{}"


@given(streams())
@example([_CHAT, _CHAT, _CHAT[:-1], b"}", _CHAT + _CHAT, _CHAT])
@example([_CHAT, _CHAT.replace(b": 2", b": 3"), b"{}}"])
@example([_CHAT, _CHAT.replace(b": 2", b": +2")])
@example(_LENGTH_FIRST)
@example([_CHAT, _CLOSING, _CHAT])
@example([_OLD, _OLD])
@example([_CHAT + _OTHER, _CHAT])
@example([_CHAT[:-2] + b"{", b"}" + _OTHER, _CHAT])
# A known head within another head, and as a body.
@example([_CHAT, _head(_LINES[0], b"X-Name: a")[:-2], _CHAT])
@example([_CHAT, _CHAT.replace(b": 2", b": %d" % len(_CHAT))[:-2], _CHAT])
def test_a_known_head_is_read_as_it_is_parsed(reads: list[bytes]) -> None:
    plain = asyncio.run(_read(_Unknown(), reads))
    heads = KnownHeads()
    assert asyncio.run(_read(heads, reads)) == plain
    assert asyncio.run(_read(heads, reads)) == plain  # by another connection


def test_heads_with_other_lengths_are_known() -> None:
    heads = _Counted()
    longer = _CHAT.replace(b"Length: 2", b"Length: 11") + b" " * 9
    seen = asyncio.run(_read(heads, [_CHAT, longer, _CHAT]))
    assert heads.found == 2
    assert [body for _, _, _, body, _ in seen[::2]] == [b"{}", b"{}" + b" " * 9, b"{}"]
    assert [dict(items)["content-length"] for _, _, items, *_ in seen[::2]] == ["2", "11", "2"]


def test_another_connection_knows_the_head_too() -> None:
    heads = _Counted()
    asyncio.run(_read(heads, [_CHAT]))
    asyncio.run(_read(heads, [_CHAT]))
    assert heads.found == 1


def test_a_handler_that_changes_headers_changes_no_later_request() -> None:
    heads, headers = (
        KnownHeads(),
        CIMultiDict({"Authorization": "Bearer one", "Content-Length": "2"}),
    )
    heads.keep(_CHAT, method="POST", target="/", headers=headers)
    headers.popall("Authorization")
    first = heads.find(_CHAT)
    assert first is not None
    assert first[1].popall("Authorization") == ["Bearer one"]
    again = heads.find(_CHAT)
    assert again is not None
    assert again[1]["Authorization"] == "Bearer one"


def test_a_connection_whose_heads_all_differ_keeps_none_in_the_end() -> None:
    heads = KnownHeads()
    each = [_CHAT.replace(b"one", b"%d" % number) for number in range(50)]
    asyncio.run(_read(heads, each))
    assert sum(heads.find(data) is not None for data in each) == 4


def test_the_table_does_not_grow_without_end() -> None:
    heads, headers = KnownHeads(), CIMultiDict({"Host": "a.example", "Content-Length": "2"})
    each = [_CHAT.replace(b"one", b"%d" % number) for number in range(MAX_HEADS + 1)]
    for data in each:
        heads.keep(data, method="POST", target="/", headers=headers)
    assert sum(heads.find(data) is not None for data in each) == 1
    large = _CHAT.replace(b"one", b"x" * MAX_HEAD_BYTES)
    heads.keep(large, method="POST", target="/", headers=headers)
    assert heads.find(large) is None
