"""Who finds whose prompt in a cache: two clients of one tenant and one of another send the same one, over each API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    CacheSharing,
    ClientConfig,
    TenancyConfig,
    TenantConfig,
)

from tests.support.conversations import APIS, OPENING
from tests.support.routers import sha256

CLIENTS: Final = ("acme/chat", "acme/batch", "rival/chat")


def bordered(sharing: CacheSharing) -> TenancyConfig:
    """Two tenants; each client's key is its name."""
    tenants = [
        TenantConfig(
            namespace="ns",
            name=tenant,
            clients=tuple(ClientConfig(name=name) for name in names),
            api_keys=tuple(
                ApiKeyConfig(name=name, client=name, sha256=sha256(f"{tenant}/{name}"))
                for name in names
            ),
        )
        for tenant, names in (("acme", ("chat", "batch")), ("rival", ("chat",)))
    ]
    return TenancyConfig(tenants=tuple(tenants), cache_sharing=sharing)


WANTED: Final = {
    CacheSharing.SERVICE: [False, True, True, True, True, True],
    CacheSharing.TENANT: [False, True, False, True, True, True],
    CacheSharing.CLIENT: [False, False, False, True, True, True],
}
"""Whether each of `CLIENTS` finds the prompt, once and once more."""


async def found_cached(
    http: httpx.AsyncClient, model: str, *, between: Callable[[], Awaitable[object]] | None = None
) -> dict[str, list[bool]]:
    """API → whether each of `CLIENTS` found the prompt, once and once more. Each API has a prompt of its own.

    `between`: awaited after each request.
    """
    found: dict[str, list[bool]] = {}
    for name in (*APIS, "completions", "generate"):
        prompt = f"{name}. {OPENING}"
        for client in 2 * CLIENTS:
            cached = await _cached(http, name, model, prompt, client)
            found.setdefault(name, []).append(
                cached > 16
            )  # more than the API's name and a template
            if between is not None:
                await between()
    return found


async def _cached(http: httpx.AsyncClient, name: str, model: str, prompt: str, client: str) -> int:
    body: dict[str, Any]
    if name in APIS:
        api = APIS[name]
        body = {"model": model, api.turns: [{"role": "user", "content": prompt}], api.limit: 4}
        path = api.path
    elif name == "completions":
        body, path = {"model": model, "prompt": prompt, "max_tokens": 4}, "/v1/completions"
    else:
        body, path = {"text": prompt, "sampling_params": {"max_new_tokens": 4}}, "/generate"
    answer = await http.post(path, json=body, headers={"Authorization": f"Bearer {client}"})
    assert answer.status_code == 200, answer.text
    made = answer.json()
    if name == "generate":
        return int(made["meta_info"]["cached_tokens"])
    tokens = APIS[name].tokens if name in APIS else APIS["chat completions"].tokens
    return tokens(made["usage"])[1]
