"""The pauses between watches, and the end of a watch over TLS as in a cluster."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pytest
from evenkeel_kube.cache import Named
from evenkeel_kube.client import Unreachable, connected
from evenkeel_kube.watch import FIRST_WAIT_S, LONGEST_WAIT_S, Selection, Watcher
from evenkeel_router.cluster.endpoints import Pod
from kubernetes.aio.client import Configuration

from tests.support.virtual_time import Longest, run_virtually

LIST = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
LIST_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(LIST), LIST)
WATCH_ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    paths = tmp_path / "server.pem", tmp_path / "server.key"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", str(paths[0]), "-keyout", str(paths[1])]
    try:
        subprocess.run([*request.split(), *names, *files], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return paths


@pytest.fixture
def silent_server(certificate: tuple[Path, Path]) -> Iterator[tuple[int, Event]]:
    """An API server that begins a watch and then neither reads nor writes: its port, and when a watch has begun."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    watched = Event()
    with ExitStack() as sockets, socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection = tls.wrap_socket(listening.accept()[0], server_side=True)
            sockets.enter_context(connection)
            while b"watch=true" not in connection.recv(65536):
                connection.sendall(LIST_ANSWER)
            connection.sendall(WATCH_ANSWER)
            watched.set()

        thread = Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1], watched
        thread.join()


async def test_a_cancelled_watch_leaves_no_connection_behind(
    silent_server: tuple[int, Event], certificate: tuple[Path, Path]
) -> None:
    """A silent server does not end TLS on its side; the watch does not wait for that."""
    port, watched = silent_server
    access = Configuration(host=f"https://127.0.0.1:{port}", ssl_ca_cert=str(certificate[0]))
    async with connected(access) as api:
        watcher = Watcher(api, Selection(Pod, "/api/v1/pods", {}), lambda: None, rng=Random(1))
        running = asyncio.create_task(watcher.run())
        assert await asyncio.to_thread(watched.wait, 10.0)
        await asyncio.sleep(0.05)  # the answer arrives
        running.cancel()
        await asyncio.wait([running])
    await asyncio.sleep(0)
    gc.collect()
    transports = [one for one in gc.get_objects() if isinstance(one, asyncio.Transport)]
    assert [
        one
        for one in transports
        if (one.get_extra_info("peername") or ("", 0))[1] == port and not one.is_closing()
    ] == []


class Answer:
    """The answer to a watch: one event, and the end."""

    connection = None

    def __init__(self, name: str) -> None:
        metadata = {"name": name, "resourceVersion": "2"}
        self.lines = [json.dumps({"type": "ADDED", "object": {"metadata": metadata}}).encode()]
        self.content = self

    async def readline(self) -> bytes:
        return self.lines.pop() if self.lines else b""

    def release(self) -> None: ...
    def close(self) -> None: ...


class Api:
    """The client at its seam: each watch ends as it was told, and the times are noted."""

    def __init__(self, *watches: Exception | Answer) -> None:
        self.times_s: list[float] = []
        self.done = asyncio.Event()
        self._watches = iter(watches)

    async def read(self, path: str, parameters: Any) -> Any:
        return json.loads(LIST)

    async def stream(self, path: str, *others: Any, **_: Any) -> Answer:
        self.times_s.append(asyncio.get_running_loop().time())
        told = next(self._watches, None)
        if told is None:
            self.done.set()
            await asyncio.sleep(3600.0)
        if not isinstance(told, Answer):
            raise told or Unreachable("late")
        return told


def pauses(*watches: Exception | Answer) -> list[float]:
    """The seconds between watches that end so."""
    api = Api(*watches)

    async def scene() -> None:
        client: Any = api
        selection = Selection(Named, "/api/v1/pods", {})
        watcher = Watcher(client, selection, lambda: None, rng=Longest())
        running = asyncio.create_task(watcher.run())
        await api.done.wait()
        running.cancel()
        await asyncio.wait([running])

    run_virtually(scene())
    return [later - before for before, later in itertools.pairwise(api.times_s)]


AWAY = Unreachable("away")


def test_the_pause_doubles_up_to_a_limit_until_an_event_comes() -> None:
    doubled = [FIRST_WAIT_S * 2**n for n in range(7)]
    want = [*doubled, LONGEST_WAIT_S, LONGEST_WAIT_S, FIRST_WAIT_S, 2 * FIRST_WAIT_S]
    assert pauses(*[AWAY] * 9, Answer("a"), AWAY) == pytest.approx(want)


def test_each_reason_of_failures_in_a_row_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="evenkeel_kube.watch"):
        pauses(AWAY, AWAY, Unreachable("another"), AWAY, Answer("a"), AWAY)
    reasons = [one.getMessage().rpartition(" ")[2] for one in caplog.records]
    assert reasons == ["away", "another", "away", "again", "away"]
