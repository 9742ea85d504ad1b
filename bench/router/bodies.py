"""How long one request of a hostile shape stops the streams of others: `python -m bench.router.bodies`.

A real router between a fake engine and two clients: one reads a stream of an event each 5 ms, the other sends one request of each
shape. The figure is the stream's longest gap until a second after that request has ended, less its longest gap without one; the
median of five. Engine and reader share a core and read bodies without a look inside, the router has the other core.

With `--turns` the router runs in this process, and the figure is the CPU time of the longest turn of its event loop: what a busy
machine does to gaps, it does not do to that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Final

import uvloop
from evenkeel_router.app import running as running_here
from evenkeel_router.cluster.config_watch import load

from bench.router.contenders import KEYS, Evenkeel, Place
from bench.router.run import ROOT, environment, free_ports, process
from bench.router.worker import MODEL, answer, chunk

PACE_S: Final = 0.005
MEBI: Final = 1024 * 1024
LARGE: Final = 15 * MEBI
_MODEL: Final = f'"model":"{MODEL}"'.encode()
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT: Final = (
    b'data: {"id":"1","object":"text_completion","created":1,"model":"bench","choices":[{"index":0,"text":"%b",'
    b'"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)
_WHOLE: Final = b'{"id":"1","choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}'
_EMBEDDING: Final = b'{"object":"embedding","index":0,"embedding":[%b]}' % b",".join(
    [b"-0.0123456789"] * 4096
)


_CREATED: Final = b'event: response.%b\ndata: {"response":{"id":"1","instructions":"%b"}}\n\n'
_DELTA: Final = b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n'
_COMPLETED: Final = b'event: response.completed\ndata: {"response":{"text":"%b","usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
_GENERATED: Final = (
    b'data: {"text":"x","meta_info":{"prompt_tokens":9,"finish_reason":null,"input_token_logprobs":[%b],'
    b'"completion_tokens":1,"cached_tokens":0}}\n\n'
)
_PIECE: Final = b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"%b"}}\n\n'


def _stream(*events: bytes) -> bytes:
    return _STREAM_HEAD + b"".join(map(chunk, events)) + b"0\r\n\r\n"


def _event(text: bytes) -> bytes:
    return _stream(_EVENT % text, b"data: [DONE]\n\n")


ANSWERS: Final[dict[bytes, Callable[[], bytes]]] = {
    b"answer-plain": lambda: answer(_WHOLE),
    b"answer-event": lambda: _event(b"x" * 16 * MEBI),
    b"answer-escapes": lambda: _event(rb"\u00e9" * (16 * MEBI // 6)),
    b"answer-generated": lambda: _stream(*[_GENERATED % b",".join([b"[-1.234567,12345,null]"] * (16 * MEBI // 23))] * 2, b"data: [DONE]\n\n"),
    b"answer-responses": lambda: _stream(
        *(_CREATED % (name, b"x" * 15 * MEBI) for name in (b"created", b"in_progress")), _DELTA, _COMPLETED % (b"x" * 15 * MEBI)
    ),
    b"answer-messages": lambda: _stream(_PIECE % b"x", _PIECE % (b"x" * 16 * MEBI), b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
    b"answer-lines": lambda: _stream(b"data: {\n" + b"data: \n" * (2 * MEBI) + b"data: }\n\n", b"data: [DONE]\n\n"),
    b"answer-comments": lambda: _STREAM_HEAD + chunk(b":\n\n" * (4 * MEBI)) + b"0\r\n\r\n",
    b"answer-embeddings": lambda: answer(b'{"data":[%b],"usage":{"prompt_tokens":9}}' % b",".join([_EMBEDDING] * 512)),
    b"answer-no-usage": lambda: answer(b'{"choices":[{"text":"%b"}]}' % (b"x" * 30 * MEBI)),
    b"answer-lists": lambda: answer(b'{"choices":[{"text":"x","logprobs":[%b]}]}' % b",".join([b"[]"] * 5_000_000)),
}  # fmt: skip
"""What a prompt asks the fake engine for → its bytes."""


class Engine(asyncio.Protocol):
    """A connection from the router. Bodies are counted, and their beginning says what the answer is."""

    made: dict[bytes, bytes] = {}  # noqa: RUF012 - answers take a while to make

    def __init__(self) -> None:
        self._data = b""
        self._left = -1
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._left < 0:
            self._data += data
            head, end, rest = self._data.partition(b"\r\n\r\n")
            if not end:
                return
            if head.startswith(b"GET"):
                self._data = b""
                self._write(answer(b'{"status":"ready"}'))
                return
            length = next(
                one for one in head.split(b"\r\n") if one.lower().startswith(b"content-length")
            )
            self._left, self._data = int(length.split(b":")[1]) - len(rest), rest[:4096]
        else:
            self._data = (self._data + data[:4096])[:4096]
            self._left -= len(data)
        if self._left <= 0:
            begin, self._data, self._left = self._data, b"", -1
            if b"watched" in begin:
                self._write(_STREAM_HEAD)
                self._tick()
            else:
                asked = next((one for one in self.made if one in begin), b"answer-plain")
                self._write(self.made[asked])

    def _tick(self) -> None:
        if self._transport is not None:
            self._write(chunk(_EVENT % b"x"))
            asyncio.get_running_loop().call_later(PACE_S, self._tick)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def _serve(port: int) -> None:
    Engine.made = {asked: make() for asked, make in ANSWERS.items()}
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    await server.serve_forever()


def _completions(members: bytes, asked: bytes = b"answer-plain") -> bytes:
    return b'{"user":"%b",%b,%b}' % (asked, _MODEL, members)


def _list(one: bytes, size_bytes: int = LARGE) -> bytes:
    return b"[%b]" % b",".join([one] * (size_bytes // (len(one) + 1)))


def _numbered(member: bytes, count: int) -> bytes:
    return b",".join(member % number for number in range(count))


_ONE: Final = b'"messages":[{"role":"user","content":"x"}]'
_TEXT: Final = b"The quick brown fox jumps, over the lazy dog, and over again. "
SHAPES: Final[dict[str, tuple[str, Callable[[], bytes]]]] = {
    "an ordinary prompt": ("completions", lambda: _completions(b'"prompt":"x"')),
    "2 kB of empty lists": ("completions", lambda: _completions(b'"prompt":' + _list(b"[]", 2048))),
    "16 kB of unknown parts": ("chat/completions", lambda: _completions(b'"messages":[{"role":"user","content":%b}]' % _list(b"{}", 16_000))),
    "1 MB of text": ("completions", lambda: _completions(b'"prompt":"%b"' % (_TEXT * (MEBI // 62)))),
    "1 MB of unknown parts": ("chat/completions", lambda: _completions(b'"messages":[{"role":"user","content":%b}]' % _list(b"{}", MEBI))),
    "60,000 parts of text": ("chat/completions", lambda: _completions(b'"messages":[{"role":"user","content":%b}]' % _list(b'{"type":"text","text":"a"}', 60_000 * 27))),
    "15 MB of text": ("completions", lambda: _completions(b'"prompt":"%b"' % (_TEXT * (LARGE // 62)))),
    "15 MB of text, again": ("completions", lambda: _completions(b'"prompt":"%b"' % (_TEXT * (LARGE // 62)))),
    "15 MB of emoji": ("completions", lambda: _completions(b'"prompt":"%b"' % ("\U0001f600".encode() * (LARGE // 4)))),
    "15 MB of escapes": ("completions", lambda: _completions(b'"prompt":"%b"' % (rb"\ud83d\ude00" * (LARGE // 12)))),
    "15 MB image inline": ("chat/completions", lambda: _completions(b'"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}]}]' % (b"A" * LARGE))),
    "15 MB of white space": ("completions", lambda: b" " * LARGE + _completions(b'"prompt":"x"')),
    "5 million empty lists": ("completions", lambda: _completions(b'"prompt":' + _list(b"[]"))),
    "2 million token ids": ("completions", lambda: _completions(b'"prompt":' + _list(b"12345", 12_000_000))),
    "1 million token ids": ("completions", lambda: _completions(b'"prompt":' + _list(b"12345", 6_000_000))),
    "900,000 nested lists": ("completions", lambda: _completions(b'"prompt":' + b"[" * 900_000 + b"]" * 900_000)),
    "600,000 messages": ("chat/completions", lambda: _completions(b'"messages":' + _list(b'{"role":"","content":""}'))),
    "5 million parts": ("chat/completions", lambda: _completions(b'"messages":[{"role":"user","content":%b}]' % _list(b"{}"))),
    "15 MB of tools": ("chat/completions", lambda: _completions(b'"tools":%b,%b' % (_list(b'{"type":"function","function":{"name":"f"}}'), _ONE))),
    "5 million stop strings": ("chat/completions", lambda: _completions(b'"stop":%b,%b' % (_list(b'""'), _ONE))),
    "logit_bias of a million": ("chat/completions", lambda: _completions(b'"logit_bias":{%b},%b' % (_numbered(b'"%d":1', 1_000_000), _ONE))),
    "a member 2 million times": ("chat/completions", lambda: _completions(b'"n":1,' * 2_000_000 + _ONE)),
    "a million members, one guarded": ("chat/completions", lambda: _completions(b'"rid":1,%b,%b' % (_numbered(b'"%d":1', 1_000_000), _ONE))),
    "15 MB of text, one member guarded": ("completions", lambda: _completions(b'"rid":1,"prompt":"%b"' % (_TEXT * (LARGE // 62)))),
    "a number of 15 million digits": ("completions", lambda: _completions(b'"prompt":"x","seed":' + b"9" * LARGE)),
    "5 million documents": ("rerank", lambda: _completions(b'"query":"q","documents":' + _list(b'""'))),
    "gzip of 15 MB of text": ("completions", lambda: zlib.compress(_completions(b'"prompt":"%b"' % (_TEXT * (LARGE // 62))), wbits=31)),
    "gzip of a gigabyte": ("completions", lambda: zlib.compress(b" " * 2**30, 1, wbits=31)),
    "answer: an event of 16 MB": ("completions", lambda: _completions(b'"prompt":"x","stream":true', b"answer-event")),
    "answer: an event of escapes": ("completions", lambda: _completions(b'"prompt":"x","stream":true', b"answer-escapes")),
    "answer: 2 events of 16 MB of generate": ("../generate", lambda: b'{"text":"answer-generated","stream":true}'),
    "answer: 3 events of 15 MB of responses": ("responses", lambda: _completions(b'"input":"x","stream":true,"instructions":"%b"' % (b"x" * LARGE), b"answer-responses")),
    "answer: an event of 16 MB of messages": ("messages", lambda: _completions(b'"max_tokens":9,"stream":true,' + _ONE, b"answer-messages")),
    "answer: an event of 2 million lines": ("completions", lambda: _completions(b'"prompt":"x","stream":true', b"answer-lines")),
    "answer: 4 million comments": ("completions", lambda: _completions(b'"prompt":"x","stream":true', b"answer-comments")),
    "answer: 512 embeddings": ("embeddings", lambda: _completions(b'"input":"x"', b"answer-embeddings")),
    "answer: 30 MB without usage": ("completions", lambda: _completions(b'"prompt":"x"', b"answer-no-usage")),
    "answer: 5 million empty lists": ("completions", lambda: _completions(b'"prompt":"x"', b"answer-lists")),
}  # fmt: skip
"""Shape → the endpoint below /v1/, and its body."""


def _head(path: str, length: int, key: str, *, packed: bool = False) -> bytes:
    coding = "content-encoding: gzip\r\n" if packed else ""
    return (
        f"POST {os.path.normpath(f'/v1/{path}')} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{coding}"
        f"content-length: {length}\r\nconnection: close\r\n\r\n"
    ).encode()


def watch(port: int) -> None:
    """Read the stream. A line of standard input asks for the longest gap since the last line, in seconds."""
    body = _completions(b'"prompt":"watched","stream":true,"max_tokens":4096')
    longest, before = 0.0, 0.0
    lock = threading.Lock()

    def answer_lines() -> None:
        nonlocal longest
        for _ in sys.stdin:
            with lock:
                longest, taken = 0.0, max(longest, time.perf_counter() - before)
            print(taken, flush=True)

    while True:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(_head("completions", len(body), KEYS[0]) + body)
            connection.recv(65536)
            before = time.perf_counter()
            if threading.active_count() == 1:
                threading.Thread(target=answer_lines, daemon=True).start()
            while connection.recv(65536):
                now = time.perf_counter()
                with lock:
                    longest, before = max(longest, now - before), now


def send(port: int, path: str, body: bytes) -> tuple[int, float]:
    """Send one request and read its answer: its status, and how long that took."""
    start = time.perf_counter()
    status = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(_head(path, len(body), KEYS[1], packed=body[:2] == b"\x1f\x8b"))
            connection.sendall(body)
        with contextlib.suppress(ConnectionError):
            data = connection.recv(65536)
            status = int(data[9:12] or 0)
            while data:
                data = connection.recv(MEBI)
    return status, time.perf_counter() - start


@contextlib.contextmanager
def running(folder: Path) -> Iterator[tuple[int, subprocess.Popen[str], int]]:
    """Router, engines and reader: the router's port, the reader and the router's process id."""
    ports = free_ports(5)
    urls = tuple(f"http://127.0.0.1:{port}" for port in ports[3:])
    contender, place = Evenkeel(sys.executable), Place(*ports[:3], urls, folder)
    with contextlib.ExitStack() as stack:
        for port in ports[3:]:
            engine = [sys.executable, "-m", "bench.router.bodies", f"--engine={port}"]
            stack.enter_context(process(engine, cpu=1, log=folder / f"engine-{port}.log"))
        router = stack.enter_context(
            process(contender.command(place), cpu=0, log=folder / "router.log")
        )
        deadline_s = time.monotonic() + 30
        while not contender.ready(place):
            if time.monotonic() > deadline_s:
                raise RuntimeError((folder / "router.log").read_text())
            time.sleep(0.2)
        time.sleep(1)
        reader = subprocess.Popen(
            [sys.executable, "-m", "bench.router.bodies", f"--watch={ports[0]}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment(),
            preexec_fn=lambda: os.sched_setaffinity(0, {1}),  # noqa: PLW1509 - no threads here
        )  # fmt: skip
        stack.callback(reader.kill)
        time.sleep(2)
        yield ports[0], reader, router.pid


def longest_gap_s(reader: subprocess.Popen[str]) -> float:
    """The stream's longest gap since the last call."""
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write("\n")
    reader.stdin.flush()
    return float(reader.stdout.readline())


async def longest_turns(folder: Path, only: str, times: int) -> None:
    """Print the longest turn of the loop for each shape, in milliseconds of CPU."""
    ports = free_ports(5)
    urls = tuple(f"http://127.0.0.1:{port}" for port in ports[3:])
    command = Evenkeel(sys.executable).command(Place(*ports[:3], urls, folder))
    config, faults, _ = load(Path(command[-1]))
    assert config is not None, faults
    loop, longest, before = asyncio.get_running_loop(), 0.0, time.thread_time()

    def turn() -> None:
        nonlocal longest, before
        longest, before = max(longest, time.thread_time() - before), time.thread_time()
        loop.call_soon(turn)

    with contextlib.ExitStack() as stack:
        for port in ports[3:]:
            engine = [sys.executable, "-m", "bench.router.bodies", f"--engine={port}"]
            stack.enter_context(process(engine, cpu=1, log=folder / f"engine-{port}.log"))
        log = stack.enter_context((folder / "requests.log").open("w"))
        async with running_here(config, log_output=log) as router:
            while not router.rooms.replicas.fleet.routable:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.05)
            await router.large_bodies.start()
            loop.call_soon(turn)
            for name, (path, make) in SHAPES.items():
                if only not in name:
                    continue
                body, turns_ms = make(), list[float]()
                (folder / "body").write_bytes(body)
                sending = [sys.executable, "-m", "bench.router.bodies", f"--port={router.traffic_port}", f"--send={path}", f"--body={folder / 'body'}"]  # fmt: skip
                for _ in range(times):
                    sender = await asyncio.create_subprocess_exec(
                        *sending, cwd=ROOT, env=environment()
                    )
                    longest = 0.0
                    await sender.wait()
                    turns_ms.append(1e3 * longest)
                print(
                    f"{name:36} {median(turns_ms):8.1f} ms  {[round(one, 1) for one in turns_ms]}"
                )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--send", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--body", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--turns", action="store_true", help="measure turns of the event loop")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="", help="shapes whose names contain this")
    arguments = parser.parse_args()
    if arguments.engine is not None:
        uvloop.run(_serve(arguments.engine))
    if arguments.watch is not None:
        watch(arguments.watch)
    if arguments.send is not None:
        send(arguments.port, arguments.send, arguments.body.read_bytes())
        return
    if arguments.turns:
        with tempfile.TemporaryDirectory() as folder:
            uvloop.run(longest_turns(Path(folder), arguments.only, arguments.times))
        return
    os.sched_setaffinity(0, {1})
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as (port, reader, _):
        print(f"{'shape':36} {'MB':>6} {'status':>6} {'took ms':>8} {'longer by ms':>12}  each")
        for name, (path, make) in SHAPES.items():
            if arguments.only not in name:
                continue
            body = make()
            longer_ms: list[float] = []
            status, took_s = 0, 0.0
            for _ in range(arguments.times):
                longest_gap_s(reader)
                time.sleep(0.5)
                usual_s = longest_gap_s(reader)
                status, took_s = send(port, path, body)
                time.sleep(0.5)
                longer_ms.append(1e3 * max(0.0, longest_gap_s(reader) - usual_s))
            each = json.dumps([round(one, 1) for one in longer_ms])
            worst = max(worst, median(longer_ms))
            print(
                f"{name:36} {len(body) / 1e6:6.1f} {status:6d} {took_s * 1e3:8.0f} "
                f"{median(longer_ms):12.1f}  {each}",
                flush=True,
            )
    print(f"worst median: {worst:.1f} ms")


if __name__ == "__main__":
    main()
