"""A real nginx with the Ingress's choice about retries: what was sent is never repeated, what was not sent always is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from evenkeel_operator.manifests.router import ingress

from tests.support.build_contexts import sample_context
from tests.support.ports import free_ports
from tests.support.promtool import program

REQUESTS = 8
CONFIG = """
daemon off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream routers {{
        {servers}
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://routers;
            proxy_next_upstream {choice};
        }}
    }}
}}
"""


def choice() -> str:
    """As the Ingress of a service says it."""
    found = ingress(sample_context("simulator.yaml"))
    assert found is not None
    annotations = found["metadata"]["annotations"]
    return str(annotations["nginx.ingress.kubernetes.io/proxy-next-upstream"])


@asynccontextmanager
async def nginx(folder: Path, ports: list[int]) -> AsyncIterator[httpx.AsyncClient]:
    """nginx in front of routers at these ports, used in turn."""
    (port,) = free_ports(1)
    servers = " ".join(f"server 127.0.0.1:{one} max_fails=0;" for one in ports)
    path = folder / "nginx.conf"
    path.write_text(CONFIG.format(folder=folder, servers=servers, port=port, choice=choice()))
    process = await asyncio.create_subprocess_exec(
        program("nginx"), "-e", f"{folder}/error.log", "-c", str(path)
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            async with asyncio.timeout(10):
                while True:
                    try:
                        await client.get("/up")
                        break
                    except httpx.ConnectError:
                        await asyncio.sleep(0.05)
            yield client
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def router(seen: Counter[str], name: str, *, dies: bool = False) -> AsyncIterator[int]:
    """Answers every POST, or reads it whole and closes the connection, as one that is killed."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            await reader.readexactly(4)
            seen[name] += 1
        if not (dies and head.startswith(b"POST")):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def posts(client: httpx.AsyncClient) -> list[int]:
    return [
        (await client.post("/v1/completions", content=b"body")).status_code for _ in range(REQUESTS)
    ]


async def test_a_request_that_a_dead_router_never_got_goes_to_another(tmp_path: Path) -> None:
    seen = Counter[str]()
    (nobody,) = free_ports(1)
    async with router(seen, "alive") as port, nginx(tmp_path, [nobody, port]) as client:
        assert await posts(client) == [200] * REQUESTS
    assert seen == {"alive": REQUESTS}


async def test_a_request_that_was_sent_is_never_repeated(tmp_path: Path) -> None:
    seen = Counter[str]()
    async with (
        router(seen, "alive") as alive,
        router(seen, "dies", dies=True) as dies,
        nginx(tmp_path, [dies, alive]) as client,
    ):
        statuses = Counter(await posts(client))
    assert seen.total() == REQUESTS
    assert seen["dies"] > 0
    assert statuses == {200: seen["alive"], 502: seen["dies"]}
