"""The verb `top`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import httpx
import msgspec
import typer
from evenkeel_contract.adminstate import STATE_PATH, RouterState, StateError, decode_state
from evenkeel_contract.names import ADMIN_PORT
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from evenkeel_cli.screen import report_console
from evenkeel_cli.top.table import render
from evenkeel_cli.top.view import View, make_view

LAST_PORT = 65535
_TIMEOUT_S = 5.0


class TopError(Exception):
    """The router does not say how it is; the message says why and what to do."""


def top(
    url: Annotated[
        str, typer.Option(help="The router's admin port.")
    ] = f"http://127.0.0.1:{ADMIN_PORT}",
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between readings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document per interval.")] = False,
    token: Annotated[
        str | None,
        typer.Option(help="Bearer token of the admin port.", envvar="EVENKEEL_ADMIN_TOKEN"),
    ] = None,
) -> None:
    """Show live shares, deficits, hit rates and queues of a fleet."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        asyncio.run(_top(_address(url), headers, interval, once, json))
    except KeyboardInterrupt:
        return
    except TopError as error:
        Console(stderr=True).print(
            f"[red]error[/]: {escape(str(error))}", highlight=False, soft_wrap=True
        )
        raise typer.Exit(1) from error


def _address(text: str) -> httpx.URL:
    """An address as somebody typed it, with or without `http://`; raises `TopError`."""
    given = text if text.startswith(("http://", "https://")) else f"http://{text}"
    try:
        url = httpx.URL(given)
    except httpx.InvalidURL as error:
        raise TopError(f"--url {text}: {error}") from error
    if not url.host or not 0 < (url.port or ADMIN_PORT) <= LAST_PORT:
        raise TopError(f"--url {text} is no address like http://127.0.0.1:{ADMIN_PORT}")
    return url


async def _top(
    url: httpx.URL, headers: dict[str, str], interval_s: float, once: bool, as_json: bool
) -> None:
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False
    ) as client:
        before = await _read(client)
        if once or as_json:
            while True:
                await asyncio.sleep(interval_s)
                now = await _read(client)
                _print(make_view(now, before), as_json=as_json)
                if once:
                    return
                before = now
        await _live(client, before, interval_s)


async def _live(client: httpx.AsyncClient, before: RouterState, interval_s: float) -> None:
    with Live(render(make_view(before, None)), screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval_s)
            try:
                now = await _read(client)
            except TopError as error:  # it may come back
                live.update(f"[red]{escape(str(error))}[/]", refresh=True)
                continue
            live.update(render(make_view(now, before)), refresh=True)
            before = now


def _print(view: View, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(view).decode() + "\n")
        sys.stdout.flush()
    else:
        report_console().print(render(view), highlight=False)


async def _read(client: httpx.AsyncClient) -> RouterState:
    try:
        response = await client.get(STATE_PATH)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise TopError(
            f"{client.base_url} does not answer ({error or type(error).__name__}); "
            f"is a fleet running? `evenkeel up FILE` starts one, --url says where its admin port is"
        ) from error
    if response.status_code in (401, 403):
        raise TopError(f"{client.base_url} wants a token; give --token")
    try:
        if response.status_code == 200:
            return decode_state(response.content)
        fault = f"answers with status {response.status_code}"
    except StateError as error:
        fault = str(error)
    raise TopError(f"{client.base_url}{STATE_PATH}: {fault}; {await _hint(client)}")


async def _hint(client: httpx.AsyncClient) -> str:
    """Where the admin port is: beside the one that was given, or where it is unless chosen otherwise."""
    host, port = client.base_url.host, client.base_url.port or 80
    for candidate in (port + 1, port + 2, ADMIN_PORT):
        url = client.base_url.copy_with(port=candidate)
        if candidate != port and candidate <= LAST_PORT and await _is_admin_port(client, url):
            return f"the admin port is another one: --url {url}"
    return (
        f"this is not a router's admin port; `evenkeel up` prints its address beside `watch` "
        f"(unless chosen otherwise http://{host}:{ADMIN_PORT}); give it with --url"
    )


async def _is_admin_port(client: httpx.AsyncClient, url: httpx.URL) -> bool:
    try:
        response = await client.get(url.join(STATE_PATH))
        if response.status_code == 200:
            decode_state(response.content)
        return response.status_code in (200, 401, 403)
    except (httpx.HTTPError, httpx.InvalidURL, StateError):
        return False
