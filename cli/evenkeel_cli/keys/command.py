"""`evenkeel keys`: creates signed keys, shows what one says, revokes them, and lists revocations."""

from __future__ import annotations

import re
import secrets
import sys
import time
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Final

import httpx
import typer
from evenkeel_contract.key import ClientKey, ClientKeyError
from evenkeel_contract.names import ADMIN_PORT
from evenkeel_contract.revocations import (
    REVOCATIONS_PATH,
    RevocationMessage,
    RevocationsError,
    decode,
    encode,
    revocation_of,
)
from evenkeel_contract.signedkeys import (
    ID_BYTES,
    MAX_LIFETIME_S,
    SignedKey,
    SignedKeyError,
    mint,
    read,
)

from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.keys.signing import SigningKeys, SigningKeysError, read_signing_keys
from evenkeel_cli.output import print_error, print_json, report_console
from evenkeel_cli.up.record import local_admin_url

_TIMEOUT_S: Final = 30.0
_UNITS: Final = {"m": 60, "h": 3600, "d": 24 * 3600}


class Action(Enum):
    """What to do."""

    CREATE = "create"
    SHOW = "show"
    REVOKE = "revoke"
    LIST = "list"


class KeysError(Exception):
    """What was asked for cannot be done; the message names the remedy."""


def keys(  # noqa: PLR0913 - the options of the command
    action: Annotated[Action, typer.Argument(help="What to do.", show_default=False)],
    *,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="`create`: file with signing keys, or - for standard input: a Secret, or the file of "
            "`evenkeel up` or `evenkeel route`.",
            show_default=False,
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Tenant of the key.", show_default=False)
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            help="Client of the key; `create`: default without it; `revoke`: all clients without it.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(help="Namespace of the tenant. Default: that of --from.", show_default=False),
    ] = None,
    expires: Annotated[str, typer.Option(help="Time until the key ends: 30m, 12h or 90d.")] = "90d",
    signer: Annotated[
        str | None,
        typer.Option(help="Id of the signing key. Default: the last one.", show_default=False),
    ] = None,
    requests_per_minute: Annotated[
        int, typer.Option(min=0, help="Ceiling of the client; 0: none.")
    ] = 0,
    tokens_per_minute: Annotated[
        int, typer.Option(min=0, help="Ceiling of the client; 0: none.")
    ] = 0,
    max_concurrent: Annotated[int, typer.Option(min=0, help="Ceiling of the client; 0: none.")] = 0,
    id_: Annotated[
        str | None,
        typer.Option("--id", help="`revoke`: id of the key.", show_default=False),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Address of a router's admin port. Default: that of the fleet that `evenkeel up` runs "
            f"from this folder, or http://127.0.0.1:{ADMIN_PORT}.",
            show_default=False,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="Bearer token for the admin port.", envvar="EVENKEEL_ADMIN_TOKEN"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Create signed API keys, and revoke them.

    `create` prints a new key, `show` what a key on standard input says. `revoke` ends one key (--id), or all keys of a client or a tenant that
    were created until now. `list` prints the revocations in force.
    """
    try:
        if action is Action.CREATE:
            given = _new_key(
                source, tenant=tenant, client=client, namespace=namespace, expires=expires,
                signer=signer, ceilings=(requests_per_minute, tokens_per_minute, max_concurrent),
            )  # fmt: skip
            _print_key(*given, json=json)
        elif action is Action.SHOW:
            _print(read(sys.stdin.read().strip()), json=json)
        else:
            with httpx.Client(
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=_TIMEOUT_S,
                trust_env=False,
            ) as router:
                address = _address(url or local_admin_url())
                if action is Action.REVOKE:
                    _revoke(router, address, _subject(id_, namespace, tenant, client))
                else:
                    _list(router, address, json=json)
    except (KeysError, SigningKeysError, SignedKeyError) as error:
        print_error(error)
        raise typer.Exit(ExitCode.FAILED) from error


def _new_key(
    source: str | None,
    *,
    tenant: str | None,
    client: str | None,
    namespace: str | None,
    expires: str,
    signer: str | None,
    ceilings: tuple[int, int, int],
) -> tuple[str, SignedKey]:
    """(the key, what it says)."""
    if source is None or tenant is None:
        raise KeysError("create needs --from FILE and --tenant NAME")
    signing = read_signing_keys(source)
    now_s = int(time.time())
    lifetime_s = _seconds(expires)
    _check_accepted(signing, source, tenant=tenant, lifetime_s=lifetime_s)
    requests, tokens, concurrent = ceilings
    record = SignedKey(
        signer=signing.newest(signer),
        id=urlsafe_b64encode(secrets.token_bytes(ID_BYTES)).decode(),
        namespace=namespace or signing.namespace,
        tenant=tenant,
        client=client or "default",
        issued_s=now_s,
        expires_s=now_s + lifetime_s,
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        max_concurrent=concurrent,
    )
    try:
        ClientKey(record.namespace, record.tenant, record.client).encode()
    except ClientKeyError as error:
        raise KeysError(f"{error}") from error
    return mint(record, signing.keys[record.signer]), record


def _check_accepted(signing: SigningKeys, source: str, *, tenant: str, lifetime_s: int) -> None:
    """Routers would refuse a key that breaks what its own file says."""
    longest_s = signing.max_lifetime_s
    if longest_s is not None and lifetime_s > longest_s:
        days = f"{longest_s / _UNITS['d']:g}d"
        raise KeysError(
            f"routers refuse keys that live longer than maxLifetime of {source}, {days}; use a shorter --expires"
        )
    if signing.tenants is not None and tenant not in signing.tenants:
        raise KeysError(
            f"{source} has no tenant {tenant!r}; add it, or set undeclaredTenants: Accept there"
        )


def _seconds(text: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,6})([mhd])", text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= MAX_LIFETIME_S:
        raise KeysError(f"--expires must be like 30m, 12h or 90d and at most 3660d, not {text!r}")
    return seconds


def _print_key(key: str, record: SignedKey, *, json: bool) -> None:
    """The key alone goes to standard output, so that a shell can keep it."""
    if json:
        print_json({"key": key, **_plain(record)})
        return
    sys.stdout.write(f"{key}\n")
    typer.echo(_sentence(record), err=True)


def _print(record: SignedKey, *, json: bool) -> None:
    if json:
        print_json(_plain(record))
    else:
        report_console().print(_sentence(record), highlight=False, markup=False)


def _plain(record: SignedKey) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _sentence(record: SignedKey) -> str:
    """What a key says, in one line."""
    ends = _day(record.expires_s)
    return f"key {record.id} of {record.identity}, signed by {record.signer}, ends {ends}"


def _day(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _subject(id_: str | None, namespace: str | None, tenant: str | None, client: str | None) -> str:
    if (id_ is None) == (tenant is None):
        raise KeysError("revoke needs --id ID, or --tenant NAME and perhaps --client NAME")
    if id_ is not None:
        return id_
    assert tenant is not None
    named = ClientKey(namespace or "default", tenant, client or "-")
    return named.tenant_identity if client is None else named.identity


def _address(text: str) -> str:
    return (text if text.startswith(("http://", "https://")) else f"http://{text}").rstrip("/")


def _revoke(router: httpx.Client, url: str, subject: str) -> None:
    revocation = revocation_of(subject, time.time())
    _answer(router, "PUT", url, encode(RevocationMessage((revocation,))))
    report_console().print(f"revoked {subject}", highlight=False, markup=False)


def _list(router: httpx.Client, url: str, *, json: bool) -> None:
    try:
        found = decode(_answer(router, "GET", url)).revocations
    except RevocationsError as error:
        raise KeysError(f"{url}: {error}") from error
    if json:
        print_json(found)
        return
    for one in found:
        line = f"{one.subject}  revoked {_day(one.revoked_s)}, kept until {_day(one.until_s)}"
        report_console().print(line, highlight=False, markup=False)


def _answer(router: httpx.Client, method: str, url: str, body: bytes | None = None) -> bytes:
    try:
        answer = router.request(method, url + REVOCATIONS_PATH, content=body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise KeysError(f"{url} does not answer ({why}); --url selects the admin port") from error
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise KeysError(f"{url} requires a token; use --token")
    if not answer.is_success:
        raise KeysError(f"{url} answered with status {answer.status_code}: {answer.text[:300]}")
    return answer.content
