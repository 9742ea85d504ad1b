"""The command `evenkeel top`."""

from __future__ import annotations

import asyncio
from typing import Annotated, NamedTuple

import httpx
import typer
from evenkeel_contract.adminstate import STATE_PATH, RouterState, StateError, decode_state
from evenkeel_contract.names import ADMIN_PORT
from rich.console import RenderableType
from rich.live import Live
from rich.markup import escape

from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.output import print_error, print_json, report_console
from evenkeel_cli.top.table import render
from evenkeel_cli.top.view import UnknownModelError, View, Views, make_views
from evenkeel_cli.up.record import local_admin_url

LAST_PORT = 65535
_TIMEOUT_S = 5.0


class TopError(Exception):
    """The state of the router is not available; the message gives the reason and the remedy."""


class AddressError(TopError):
    """`--url` is not an address."""


def top(
    *,
    url: Annotated[
        str | None,
        typer.Option(
            help="Address of the router's admin port. Default: that of the fleet that `evenkeel up` runs from this "
            f"folder, or http://127.0.0.1:{ADMIN_PORT}.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Show this model only, where the router has several: its name, an alias, or its service.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between readings.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one interval, then exit.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per interval.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", help="Show also deficits, leads, QoE, and what the ledger contains."
        ),
    ] = False,
    token: Annotated[
        str | None,
        typer.Option(help="Bearer token for the admin port.", envvar="EVENKEEL_ADMIN_TOKEN"),
    ] = None,
) -> None:
    """Show shares, hit rates and queues, and whether they are fair."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    shown = _Shown(model, as_json=json, verbose=verbose)
    try:
        address = address_of(url or local_admin_url())
        asyncio.run(_top(address, headers, shown, interval_s=interval, once=once))
    except KeyboardInterrupt:
        if once:
            raise
        # Ctrl-C is how to end the other views.
    except AddressError as error:
        print_error(error)
        raise typer.Exit(ExitCode.INVALID) from error
    except TopError as error:
        print_error(error)
        raise typer.Exit(ExitCode.FAILED) from error


def address_of(text: str) -> httpx.URL:
    """The URL of `text`, which may lack `http://`; raises `AddressError`."""
    given = text if text.startswith(("http://", "https://")) else f"http://{text}"
    try:
        url = httpx.URL(given)
    except httpx.InvalidURL as error:
        raise AddressError(f"--url {text}: {error}") from error
    if not url.host or not 0 < (url.port or ADMIN_PORT) <= LAST_PORT:
        raise AddressError(f"--url {text} is not an address like http://127.0.0.1:{ADMIN_PORT}")
    return url


class _Shown(NamedTuple):
    """What is shown of a router, and how."""

    model: str | None
    as_json: bool
    verbose: bool

    def view(self, now: RouterState, before: RouterState | None) -> View | Views:
        """What is shown of two readings; raises `TopError`."""
        try:
            return make_views(now, before, self.model)
        except UnknownModelError as error:
            raise TopError(f"--model {error}") from None

    def screen(self, now: RouterState, before: RouterState | None) -> RenderableType:
        """The same as a table."""
        return render(self.view(now, before), verbose=self.verbose)


async def _top(
    url: httpx.URL,
    headers: dict[str, str],
    shown: _Shown,
    *,
    interval_s: float,
    once: bool,
) -> None:
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False
    ) as client:
        before = await _read(client)
        if once or shown.as_json:
            while True:
                await asyncio.sleep(interval_s)
                now = await _read(client)
                if shown.as_json:
                    print_json(shown.view(now, before))
                else:
                    report_console().print(shown.screen(now, before), highlight=False)
                if once:
                    return
                before = now
        await _live(client, before, interval_s, shown)


async def _live(
    client: httpx.AsyncClient, before: RouterState, interval_s: float, shown: _Shown
) -> None:
    with Live(shown.screen(before, None), screen=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(interval_s)
            try:
                now = await _read(client)
                screen = shown.screen(now, before)
            except TopError as error:  # the router may restart, and a model may be removed
                live.update(f"[red]{escape(str(error))}[/]", refresh=True)
                continue
            live.update(screen, refresh=True)
            before = now


async def _read(client: httpx.AsyncClient) -> RouterState:
    try:
        response = await client.get(STATE_PATH)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise TopError(
            f"{client.base_url} does not answer ({str(error) or type(error).__name__}); "
            f"`evenkeel up FILE` starts a fleet, and --url selects its admin port"
        ) from error
    if response.status_code in (401, 403):
        raise TopError(f"{client.base_url} requires a token; use --token")
    try:
        if response.status_code == 200:
            return decode_state(response.content)
        fault = f"answered with status {response.status_code}"
    except StateError as error:
        fault = str(error)
    raise TopError(f"{client.base_url}{STATE_PATH}: {fault}; {await _hint(client)}")


async def _hint(client: httpx.AsyncClient) -> str:
    """Where the admin port is: near the given port, or at its default."""
    host, port = client.base_url.host, client.base_url.port or 80
    for candidate in (port + 1, port + 2, ADMIN_PORT):
        url = client.base_url.copy_with(port=candidate)
        if candidate != port and candidate <= LAST_PORT and await _is_admin_port(client, url):
            return f"the admin port is at another address: --url {url}"
    return (
        f"this is not the admin port of a router; `evenkeel up` prints its address after `watch` "
        f"(the default is http://{host}:{ADMIN_PORT}); use it with --url"
    )


async def _is_admin_port(client: httpx.AsyncClient, url: httpx.URL) -> bool:
    try:
        response = await client.get(url.join(STATE_PATH))
        if response.status_code == 200:
            decode_state(response.content)
        return response.status_code in (200, 401, 403)
    except (httpx.HTTPError, httpx.InvalidURL, StateError):
        return False
