"""The end of a watch, over TLS as in a cluster."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from evenkeel_kube.client import connected
from evenkeel_kube.watch import Selection, Watcher
from evenkeel_router.cluster.endpoints import Pod
from kubernetes.aio.client import Configuration

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
