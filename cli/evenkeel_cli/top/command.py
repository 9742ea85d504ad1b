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

from evenkeel_cli.top.table import render
from evenkeel_cli.top.view import View, make_view

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
    """Show live shares, deficits, hit rates and queues of a running fleet."""
    address = url if url.startswith(("http://", "https://")) else f"http://{url}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        asyncio.run(_top(address.rstrip("/"), headers, interval, once, json))
    except KeyboardInterrupt:
        return
    except TopError as error:
        Console(stderr=True).print(f"[red]error[/]: {escape(str(error))}", highlight=False)
        raise typer.Exit(1) from error


async def _top(
    url: str, headers: dict[str, str], interval_s: float, once: bool, as_json: bool
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
        Console().print(render(view), highlight=False)


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
    if response.status_code != 200:
        raise TopError(f"{client.base_url}{STATE_PATH} answers with status {response.status_code}")
    try:
        return decode_state(response.content)
    except StateError as error:
        raise TopError(f"{client.base_url}{STATE_PATH}: {error}") from error
