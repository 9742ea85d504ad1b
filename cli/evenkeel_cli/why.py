"""The command `evenkeel why`: where the time of one request went."""

from __future__ import annotations

from typing import Annotated

import httpx
import msgspec
import typer
from evenkeel_contract.consolestate import REQUESTS_PATH, RequestsState
from rich.console import Console
from rich.markup import escape

from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.narrow import FittedTable, make_table
from evenkeel_cli.output import print_error, print_json, report_console
from evenkeel_cli.top.command import AddressError, address_of
from evenkeel_cli.up.record import local_admin_url

_TIMEOUT_S = 10.0


class WhyError(Exception):
    """No router explains the request; the message gives the reason and the remedy."""


def why(
    request_id: Annotated[str, typer.Argument(help="Header x-request-id of the answer.")],
    *,
    url: Annotated[
        str | None,
        typer.Option(
            help="Admin port (default: as `top`), or port for requests.",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Admin token, or API key of the tenant.",
            envvar="EVENKEEL_ADMIN_TOKEN",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show why a request was slow: where it waited, and who was ahead."""
    try:
        state = _read(address_of(url or local_admin_url()), request_id, token)
    except AddressError as error:
        print_error(error)
        raise typer.Exit(ExitCode.INVALID) from error
    except WhyError as error:
        print_error(error)
        raise typer.Exit(ExitCode.FAILED) from error
    if json:
        print_json(state)
    else:
        _report(state, report_console())


def _read(url: httpx.URL, request_id: str, token: str | None) -> RequestsState:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx.get(
            url.join(REQUESTS_PATH),
            params={"id": request_id},
            headers=headers,
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        raise WhyError(
            f"{url} does not answer ({str(error) or type(error).__name__}); set --url to a router's admin port, "
            "or to its port for requests"
        ) from error
    if response.status_code in (401, 403):
        raise WhyError(f"{url}: it refused the token or key; set --token or EVENKEEL_ADMIN_TOKEN")
    try:
        state = msgspec.json.decode(response.content, type=RequestsState)
    except msgspec.MsgspecError as error:
        raise WhyError(f"{url}: this is not a router that explains requests; set --url") from error
    if not state.requests:
        raise WhyError(
            f"{url}: this router keeps no request {request_id}. It keeps the last {state.kept} of each tenant since its start; "
            "ask the other routers, or read the log"
        )
    return state


def _report(state: RequestsState, console: Console) -> None:
    one = state.requests[0]
    console.print(f"[bold]{escape(one.request_id)}[/] of {escape(one.name)}, {one.path}")
    for sentence in state.words:
        console.print(escape(sentence), highlight=False, soft_wrap=True)
    if state.ahead:
        table = make_table("ahead of it", "requests", "tokens computed", gap=2)
        for of in state.ahead:
            table.add_row(escape(of.name), f"{of.requests:,}", f"{of.tokens:,}")
        console.print()
        console.print(FittedTable(table))
    if state.ahead_more:
        console.print(f"and {state.ahead_more:,} more clients", highlight=False)
