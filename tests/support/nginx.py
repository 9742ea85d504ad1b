"""A real nginx in front of routers, with the choice about retries that the Ingress of a service makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from evenkeel_operator.manifests.router import ingress

from tests.support.build_contexts import sample_context
from tests.support.ports import free_ports
from tests.support.promtool import program

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
async def nginx(folder: Path, addresses: Iterable[str]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of nginx in front of routers at these addresses, used in turn."""
    (port,) = free_ports(1)
    servers = " ".join(f"server {one} max_fails=0;" for one in addresses)
    path = folder / "nginx.conf"
    path.write_text(CONFIG.format(folder=folder, servers=servers, port=port, choice=choice()))
    process = await asyncio.create_subprocess_exec(
        program("nginx"), "-e", f"{folder}/error.log", "-c", str(path)
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
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
