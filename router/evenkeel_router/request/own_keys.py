"""`/v1/keys`: a client creates, lists and revokes signed keys of its own, with a token of an issuer (`selfService`).

Like those of the console, these requests are neither counted nor logged; refusals are counted. The audit log has a line for each.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import msgspec
from evenkeel_contract.messages import UNREADABLE
from evenkeel_contract.revocations import Revocation, RevocationsError
from evenkeel_contract.signedkeys import SelfServiceConfig, SignedKey, SignedKeysConfig, mint

from evenkeel_router.api.errors import Outcome, Refusal, invalid
from evenkeel_router.api.identity import Client, Directory, names_of
from evenkeel_router.api.identity_headers import Named
from evenkeel_router.api.own_keys import OwnKey, OwnKeys
from evenkeel_router.ledger.key_sets import KeySetReader
from evenkeel_router.ledger.revocation_exchange import RevocationExchange
from evenkeel_router.ledger.totals import RequestTotals
from evenkeel_router.request.console_page import DATA_HEADERS
from evenkeel_router.request.identification import identified
from evenkeel_router.request.intake import Intake
from evenkeel_router.request.refusals import refused_aside
from evenkeel_router.settings import Settings
from evenkeel_router.transport.client_request import Answer, CompleteReply, Request, read_body

PATH: Final = "/v1/keys"
_METHODS: Final = "GET, POST"
_MAX_BODY: Final = 4096


class KeyService:
    """Answers the requests of one router for clients' own keys."""

    def __init__(
        self,
        settings: Settings,
        intake: Intake,
        totals: RequestTotals,
        revocations: RevocationExchange,
        *,
        key_sets: KeySetReader,
    ) -> None:
        self._settings = settings
        self._intake = intake
        self._totals = totals
        self._key_sets = key_sets
        self._revocations = revocations

    def serves(self, request: Request, path: str) -> bool:
        """Whether this is a request for keys, and clients may create some."""
        if path != PATH and not path.startswith(f"{PATH}/"):
            return False
        signed = self._settings.config.tenancy.signed_keys
        offered = signed is not None and signed.self_service is not None
        return offered and request.method != "OPTIONS"

    async def handle(self, request: Request, path: str) -> Answer:
        """Create a key, list all, or revoke one."""
        signed = self._settings.config.tenancy.signed_keys
        assert signed is not None  # `serves`
        assert signed.self_service is not None
        id_ = path.removeprefix(PATH).removeprefix("/")
        try:
            _check_method(request, id_)
            client = await identified(
                self._intake, self._key_sets, request, Directory.identify_by_token
            )
            named = self._named(client)
            # The newest revocations decide which key is the next one.
            await self._revocations.refresh()
            keys = OwnKeys(signed.self_service, self._intake.revocations, client.identity)
            if id_:
                found = await self._revoke(keys, client, id_)
            elif request.method == "POST":
                number = await self._asked(request, client, signed.self_service)
                found = self._create(keys, named, client, number=number, signed=signed)
            else:
                found = self._list(keys, client)
        except Refusal as refusal:
            return refused_aside(self._intake, self._totals, request, refusal)
        return CompleteReply(
            request, status=200, body=msgspec.json.encode(found), headers=DATA_HEADERS
        )

    def _named(self, client: Client) -> Named:
        """The names that a key of the client has; raises `Refusal` where they would name another one."""
        tenant, name = names_of(client.identity)
        namespace = unquote(client.identity.partition("/")[0])
        named = Named(namespace, tenant, name, "authorization")
        if self._intake.directory.client_named(named).identity != client.identity:
            message = f"Tenant {name!r} is not declared, so its clients share an identity and have no keys of their own. Ask an administrator."
            raise Refusal(Outcome.FORBIDDEN, message, code="tenant_not_declared")
        return named

    async def _asked(self, request: Request, client: Client, policy: SelfServiceConfig) -> int:
        """The number of the key that a request asks for."""
        memory = self._intake.body_memory.of(client.tenant_identity)
        timeout_s = self._settings.timing.body_timeout_s
        body = await read_body(request, memory, limit_bytes=_MAX_BODY, timeout_s=timeout_s)
        memory.release(len(body))
        return _number_in(body, policy.keys_per_client)

    def _create(
        self, keys: OwnKeys, named: Named, client: Client, *, number: int, signed: SignedKeysConfig
    ) -> dict[str, Any]:
        now_s = time.time()
        key = keys.current(number, now_s)
        if key is None:
            next_s = keys.next_s(number, now_s)
            message = f"Key {number} was revoked too often. Use another number, or wait until {_day(next_s)}."
            raise Refusal(
                Outcome.RATE_LIMITED,
                message,
                code="too_many_keys",
                param="number",
                retry_after_s=next_s - now_s,
            )
        signer = max(signed.keys, key=lambda one: one.id)
        record = SignedKey(
            signer.id,
            key.id,
            named.namespace,
            named.tenant,
            named.client,
            key.issued_s,
            key.expires_s,
        )
        self._intake.audit.fact(
            "created", kind="own key", id=key.id, identity=client.identity, until=key.expires_s
        )
        return self._plain(key) | {"key": mint(record, signer.secret)}

    def _list(self, keys: OwnKeys, client: Client) -> dict[str, Any]:
        self._intake.audit.fact("listed", kind="own key", identity=client.identity)
        return {"object": "list", "data": list(map(self._plain, keys.all(time.time())))}

    async def _revoke(self, keys: OwnKeys, client: Client, id_: str) -> dict[str, Any]:
        now_s = time.time()
        key = keys.find(id_, now_s)
        if key is None:
            message = f"You have no key {id_[:80]!r}. GET {PATH} lists your keys; an administrator revokes all others."
            raise Refusal(Outcome.NOT_FOUND, message, code="unknown_key_id", param="id")
        if not key.revoked:
            revocation = Revocation(key.id, int(now_s), key.expires_s + 1)
            try:
                await self._revocations.revoke((revocation,), client.identity)
            except (OSError, RevocationsError) as error:
                _not_stored(error)
        return {"object": "key", "id": key.id, "deleted": True}

    def _plain(self, key: OwnKey) -> dict[str, Any]:
        used_s = self._intake.key_uses.last_s(key.id)
        return {
            "object": "key",
            "id": key.id,
            "number": key.number,
            "expires_at": key.expires_s,
            "last_used_at": None if used_s is None else int(used_s),
            "revoked": key.revoked,
        }


def _check_method(request: Request, id_: str) -> None:
    allowed = "DELETE" if id_ else _METHODS
    if request.method not in allowed.split(", "):
        raise Refusal(
            Outcome.INVALID_REQUEST,
            f"{PATH}{'/ID' if id_ else ''} takes {allowed}, not {request.method}.",
            code="method_not_allowed",
            status=HTTPStatus.METHOD_NOT_ALLOWED,
            more=[("allow", allowed)],
        )


def _number_in(body: bytes, most: int) -> int:
    """The number in the body of a request for a key; raises `Refusal`."""
    try:
        given = msgspec.json.decode(body) if body.strip() else {}
    except UNREADABLE as error:
        message = 'The body is not JSON. Send {"number": 1}, or no body.'
        raise invalid(message, code="invalid_json") from error
    if not isinstance(given, dict):
        message = 'The body must be an object. Send {"number": 1}, or no body.'
        raise invalid(message, code="invalid_type")
    unknown = next((name for name in given if name != "number"), None)
    if unknown is not None:
        message = f"The field {unknown[:80]!r} is unknown; remove it. A request for a key has number only."
        raise invalid(message, code="unknown_parameter", param=unknown[:80])
    number = given.get("number", 1)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
        many = f"from 1 to {most}" if most > 1 else "1"
        message = f"number must be {many}: that is how many keys each client may have."
        raise invalid(message, code="invalid_value", param="number")
    return number


def _not_stored(error: Exception) -> NoReturn:
    message = f"The revocation could not be stored: {error}. Send the request again."
    raise Refusal(Outcome.UNAVAILABLE, message, code="not_stored", retry_after_s=1) from error


def _day(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
