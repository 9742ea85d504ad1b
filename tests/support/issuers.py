"""An issuer of tokens on loopback: its keys, its address, and tokens of every kind."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from aiohttp import web
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

ISSUER, AUDIENCE = "https://login.example.com", "llm"
Signing = RSAKey | ECKey


@cache
def rsa(name: str) -> RSAKey:
    """The key of that name; making one takes a tenth of a second."""
    return RSAKey.generate_key(2048, {"kid": name, "use": "sig"})


@cache
def ec(name: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": name})


def key_set(*keys: Signing) -> str:
    """What the issuer publishes."""
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]})


def claims(**changes: Any) -> dict[str, Any]:
    """Claims of a good token; a value of None removes one."""
    now = int(time.time())
    given: dict[str, Any] = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "team": "acme", "iat": now, "exp": now + 600,
    }  # fmt: skip
    return {name: value for name, value in (given | changes).items() if value is not None}


def token(key: Any, algorithm: str = "RS256", *, header: Any = None, **changes: Any) -> str:
    """A token of these claims."""
    head = {"alg": algorithm, "kid": key.kid} if header is None else header
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    payload = json.dumps(claims(**changes))
    return jws.serialize_compact(head, payload, key, algorithms=[algorithm], registry=registry)


@dataclass
class Issuer:
    """A server with a key set."""

    keys: list[Signing] = field(default_factory=list)
    url: str = ""
    asked: int = 0
    status: int = 200
    body: str | None = None
    """Answer instead of the keys."""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        text = key_set(*self.keys) if self.body is None else self.body
        return web.Response(status=self.status, text=text, headers={"Location": "/other"})


@asynccontextmanager
async def issuer(*keys: Signing) -> AsyncIterator[Issuer]:
    """A running issuer."""
    found = Issuer(list(keys))
    app = web.Application()
    app.router.add_get("/keys", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
    try:
        yield found
    finally:
        await runner.cleanup()
