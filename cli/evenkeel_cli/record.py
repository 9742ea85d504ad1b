"""`evenkeel record`: starts, stops and fetches the recordings of a fleet's routers, for `evenkeel plan`."""

from __future__ import annotations

import secrets
from enum import Enum
from pathlib import Path
from typing import Annotated

import httpx
import msgspec
import typer
from evenkeel_contract.names import ADMIN_PORT
from evenkeel_contract.recording import (
    RECORDING_FILE_PATH,
    RECORDING_PATH,
    SALT_BYTES,
    RecordingError,
    RecordingState,
    StartRecording,
    decode_recording_state,
)

from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.output import print_error, print_json, report_console
from evenkeel_cli.up.record import local_admin_url

_TIMEOUT_S = 30.0


class Action(Enum):
    """What to do with the recordings."""

    START = "start"
    STOP = "stop"
    STATUS = "status"
    FETCH = "fetch"


class RecordError(Exception):
    """A router did not do what was asked; the message gives the reason and the remedy."""


class RouterRecording(msgspec.Struct, frozen=True, kw_only=True):
    """The recording of one router."""

    url: str
    state: RecordingState


def record(
    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)],
    *,
    url: Annotated[
        list[str] | None,
        typer.Option(
            help="Address of a router's admin port; repeatable. Default: that of the fleet that `evenkeel up` runs "
            f"from this folder, or http://127.0.0.1:{ADMIN_PORT}.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="File for `fetch`.")] = Path("recording.jsonl"),
    token: Annotated[
        str | None,
        typer.Option(help="Bearer token for the admin port.", envvar="EVENKEEL_ADMIN_TOKEN"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Record traffic, without text, for `evenkeel plan`.

    A fleet with several routers needs one --url for each of them, so that they share a salt.
    """
    urls = url or [local_admin_url()]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(headers=headers, timeout=_TIMEOUT_S, trust_env=False) as client:
            states = _act(client, [_address(one) for one in urls], action, out)
    except RecordError as error:
        print_error(error)
        raise typer.Exit(ExitCode.FAILED) from error
    if json:
        print_json(states)
        return
    for one in states:
        report_console().print(f"{one.url}: {_sentence(one.state)}", highlight=False)
    if action is Action.FETCH:
        report_console().print(f"written to {out}", highlight=False)


def _act(client: httpx.Client, urls: list[str], action: Action, out: Path) -> list[RouterRecording]:
    body = msgspec.json.encode(StartRecording(secrets.token_hex(SALT_BYTES)))
    methods = {Action.START: "PUT", Action.STOP: "DELETE"}
    method = methods.get(action, "GET")
    states = [
        RouterRecording(
            url=url, state=_state(client, method, url, body if method == "PUT" else None)
        )
        for url in urls
    ]
    if action is Action.FETCH:
        _fetch(client, urls, out)
    return states


def _address(text: str) -> str:
    return (text if text.startswith(("http://", "https://")) else f"http://{text}").rstrip("/")


def _state(client: httpx.Client, method: str, url: str, body: bytes | None) -> RecordingState:
    try:
        response = client.request(method, f"{url}{RECORDING_PATH}", content=body)
        _check(response, url)
        return decode_recording_state(response.content)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RecordError(
            f"{url} does not answer ({str(error) or type(error).__name__}); --url selects the admin port"
        ) from error
    except RecordingError as error:
        raise RecordError(f"{url}: not a router that records: {error}") from error


def _check(response: httpx.Response, url: str) -> None:
    if response.status_code == httpx.codes.OK:
        return
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise RecordError(f"{url} requires a token; use --token")
    if (
        response.status_code == httpx.codes.FORBIDDEN
        and b"recording_not_allowed" in response.content
    ):
        raise RecordError(
            f"{url} may not record; set spec.router.recording (of `evenkeel route`: recording)"
        )
    raise RecordError(
        f"{url}{RECORDING_PATH} answered with status {response.status_code}; "
        f"--url must be the admin port of a router that can record"
    )


def _fetch(client: httpx.Client, urls: list[str], out: Path) -> None:
    """All recordings one after another; an earlier file stays if one of them fails."""
    part = out.with_name(f"{out.name}.part")
    try:
        with part.open("wb") as file:
            for url in urls:
                with client.stream("GET", f"{url}{RECORDING_FILE_PATH}") as response:
                    if response.status_code != httpx.codes.OK:
                        raise RecordError(f"{url} answered with status {response.status_code}")
                    for piece in response.iter_bytes():
                        file.write(piece)
        part.replace(out)
    except OSError as error:
        raise RecordError(f"--out {out}: {error.strerror}") from error
    except httpx.HTTPError as error:
        raise RecordError(
            f"the recording broke off: {str(error) or type(error).__name__}"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _sentence(state: RecordingState) -> str:
    if not state.allowed:
        return "may not record; set spec.router.recording"
    what = "records" if state.recording else "does not record"
    text = (
        f"{what}; {state.requests:,} requests in {state.size_bytes / 2**20:.1f} of "
        f"{state.max_bytes / 2**20:.0f} MiB, {state.open} in flight"
    )
    if state.dropped:
        text += f", {state.dropped:,} dropped"
    return f"{text}; {state.fault}" if state.fault else text
