"""Keys that clients create with a token, at three real routers: created, listed and revoked at any of them, and after a restart."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from evenkeel_contract import revocations
from evenkeel_contract.identityheaders import UndeclaredTenants
from evenkeel_contract.routerconfig import PeerConfig, PoolConfig, RouterConfig, TenancyConfig
from evenkeel_contract.signedkeys import SelfServiceConfig, SignedKey, mint, read
from evenkeel_contract.tokenissuers import TokenIssuerConfig
from evenkeel_router.app import Router, running

from tests.integration.test_router_signed_keys import SECRET, SIGNED, config, key, status
from tests.support.issuers import AUDIENCE, ISSUER, key_set, rsa, token
from tests.support.routers import PATIENCE_S, QUICK, applied, tenancy, until

OFFERED = replace(SIGNED, self_service=SelfServiceConfig(keys_per_client=2))
ISSUERS = (
    TokenIssuerConfig(
        issuer=ISSUER, audience=AUDIENCE, jwks=key_set(rsa("a")), tenant_claim="team"
    ),
)


def allowed(**changes: Any) -> TenancyConfig:
    return tenancy(**({"signed_keys": OFFERED, "jwt": ISSUERS} | changes))


@asynccontextmanager
async def routers(folder: Path, count: int = 3, **changes: Any) -> AsyncIterator[list[Router]]:
    """Routers that know each other, each with its own file."""

    def configured(number: int, *peers: PeerConfig) -> RouterConfig:
        return config(folder / f"{number}.json", *peers, allowed=allowed(**changes))

    async with AsyncExitStack() as stack:
        found: list[Router] = []
        for number in range(count):
            one = running(configured(number), timing=QUICK)
            found.append(await stack.enter_async_context(one))
        for number, one in enumerate(found):
            peers = (
                PeerConfig(name=f"r{i}", url=f"http://127.0.0.1:{other.admin_port}")
                for i, other in enumerate(found)
                if other is not one
            )
            applied(one.rooms, configured(number, *peers))
        yield found


async def asked(
    router: Router,
    method: str,
    path: str = "",
    *,
    credential: str | None = None,
    content: bytes = b"",
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {credential or token(rsa('a'))}"}
    async with httpx.AsyncClient(timeout=PATIENCE_S, headers=headers) as client:
        url = f"{router.url}/v1/keys{path}"
        return await client.request(method, url, content=content)


async def created(router: Router, number: int = 1) -> dict[str, Any]:
    answer = await asked(router, "POST", content=b'{"number": %d}' % number)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def listed(router: Router) -> dict[str, dict[str, Any]]:
    answer = await asked(router, "GET")
    assert answer.status_code == 200, answer.text
    return {one["id"]: one for one in answer.json()["data"]}


async def test_a_key_is_created_used_and_revoked_at_any_of_three_routers(tmp_path: Path) -> None:
    async with routers(tmp_path) as three:
        one = await created(three[0])
        assert {name: one[name] for name in ("object", "number", "revoked", "last_used_at")} == {
            "object": "key", "number": 1, "revoked": False, "last_used_at": None,
        }  # fmt: skip
        assert read(one["key"]).identity == "ns/acme/ann"
        # Each router gives the same key of a number, so it makes no difference which one is asked, or how often.
        assert await created(three[1]) == one
        assert [await status(router, one["key"]) for router in three] == [200, 200, 200]

        assert (await asked(three[1], "DELETE", f"/{one['id']}")).json() == {
            "object": "key", "id": one["id"], "deleted": True,
        }  # fmt: skip
        assert await status(three[1], one["key"]) == 401
        # A router that is asked for a new key knows the revocation, however short ago it was.
        other = await created(three[2])
        assert other["id"] != one["id"]
        await until(lambda: all(r.rooms.intake.revocations.count for r in three), "all know it")
        assert [await status(router, one["key"]) for router in three] == [401, 401, 401]
        assert [await status(router, other["key"]) for router in three] == [200, 200, 200]
        await until(lambda: all((tmp_path / f"{n}.json").exists() for n in range(3)), "stored")
    async with routers(tmp_path) as three:
        assert await created(three[0]) == other
        assert [await status(router, one["key"]) for router in three] == [401, 401, 401]
        assert [await status(router, other["key"]) for router in three] == [200, 200, 200]


async def test_the_list_has_every_key_that_may_be_valid_and_its_last_use(tmp_path: Path) -> None:
    async with routers(tmp_path, 2) as (one, other):
        first, second = await created(one), await created(one, 2)
        await status(one, first["key"])
        found = await listed(one)
        assert {first["id"], second["id"]} <= found.keys()
        assert {entry["number"] for entry in found.values()} == {1, 2}
        assert len(found) == 4  # of each number this period's key and its predecessor
        assert found[first["id"]]["last_used_at"] is not None
        assert found[second["id"]]["last_used_at"] is None
        # Uses are known where they were.
        assert (await listed(other))[first["id"]]["last_used_at"] is None
        await asked(other, "DELETE", f"/{first['id']}")
        assert (await listed(one))[first["id"]]["revoked"]
        assert "key" not in found[first["id"]]


async def test_a_key_may_not_create_list_or_revoke_keys(tmp_path: Path) -> None:
    async with routers(tmp_path, 1) as (one,):
        own = await created(one)
        for credential in (own["key"], key()):
            for method, path in (("POST", ""), ("GET", ""), ("DELETE", f"/{own['id']}")):
                answer = await asked(one, method, path, credential=credential)
                assert (answer.status_code, answer.json()["error"]["code"]) == (
                    403,
                    "token_required",
                )
        assert (await asked(one, "POST", credential="sk-unknown")).status_code == 401
        assert (await asked(one, "POST", credential=token(rsa("a"), exp=1))).status_code == 401
        assert await status(one, own["key"]) == 200


async def test_a_client_cannot_revoke_the_key_of_another(tmp_path: Path) -> None:
    async with routers(tmp_path, 1) as (one,):
        own = await created(one)
        stranger = token(rsa("a"), sub="bob")
        answer = await asked(one, "DELETE", f"/{own['id']}", credential=stranger)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "id")
        assert await status(one, own["key"]) == 200


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        (b'{"number": 3}', "number", "from 1 to 2"),
        (b'{"number": 0}', "number", "from 1 to 2"),
        (b'{"number": true}', "number", "from 1 to 2"),
        (b'{"number": "1"}', "number", "from 1 to 2"),
        (b'{"lifetime": "99d"}', "lifetime", "remove it"),
        (b"[]", None, "object"),
        (b"{", None, "JSON"),
    ],
)
async def test_what_cannot_be_created_names_the_field_and_the_fix(
    tmp_path: Path, body: bytes, param: str | None, part: str
) -> None:
    async with routers(tmp_path, 1) as (one,):
        answer = await asked(one, "POST", content=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        assert part in error["message"]


async def test_other_methods_get_405_with_those_that_are_allowed(tmp_path: Path) -> None:
    async with routers(tmp_path, 1) as (one,):
        for method, path, allow in (("PUT", "", "GET, POST"), ("GET", "/x", "DELETE")):
            answer = await asked(one, method, path)
            assert (answer.status_code, answer.headers["Allow"]) == (405, allow)


async def test_without_self_service_there_are_no_such_paths(tmp_path: Path) -> None:
    async with routers(tmp_path, 1, signed_keys=SIGNED) as (one,):
        answer = await asked(one, "POST")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


async def test_a_proxy_that_names_clients_cannot_pass_on_a_token(tmp_path: Path) -> None:
    from tests.unit.evenkeel_router.test_identity_headers import LITELLM, TEAM

    proxied = {"identity_headers": (LITELLM,), "trusted_proxies": ("127.0.0.0/8",)}
    async with routers(tmp_path, 1, **proxied) as (one,), httpx.AsyncClient() as client:
        headers = {"Authorization": f"Bearer {token(rsa('a'))}", TEAM: "acme"}
        answer = await client.post(f"{one.url}/v1/keys", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "token_required")


async def test_clients_of_tenants_that_share_an_identity_get_no_keys(tmp_path: Path) -> None:
    async with routers(tmp_path, 1, undeclared_tenants=UndeclaredTenants.SHARE) as (one,):
        stranger = token(rsa("a"), team="new")
        answer = await asked(one, "POST", credential=stranger)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tenant_not_declared")
    async with routers(tmp_path, 1, undeclared_tenants=UndeclaredTenants.ACCEPT) as (one,):
        answer = await asked(one, "POST", credential=stranger)
        assert read(answer.json()["key"]).identity == "ns/new/ann"
        assert await status(one, answer.json()["key"]) == 200


async def test_a_router_of_several_models_gives_keys_for_all_of_them(tmp_path: Path) -> None:
    pools = tuple(PoolConfig(service=name, model=name) for name in ("big", "small"))
    several = replace(config(tmp_path / "f.json", allowed=allowed()), pools=pools)
    async with running(several, timing=QUICK) as router:
        own = await created(router)
        assert await status(router, own["key"]) == 200
        assert (await asked(router, "DELETE", f"/{own['id']}")).json()["deleted"]
        assert await status(router, own["key"]) == 401


async def test_a_revocation_that_finds_no_room_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with routers(tmp_path, 1) as (one,):
        own = await created(one)
        monkeypatch.setattr(revocations, "MAX_REVOCATIONS", 0)
        answer = await asked(one, "DELETE", f"/{own['id']}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_stored")
        assert "full" in answer.json()["error"]["message"]


async def test_each_request_for_keys_has_a_line_in_the_audit_log_without_the_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evenkeel_router.request.audit")
    async with routers(tmp_path, 1) as (one,):
        own = await created(one)
        await listed(one)
        await asked(one, "DELETE", f"/{own['id']}")
        await asked(one, "DELETE", f"/{own['id']}")
    lines = [record.getMessage() for record in caplog.records]
    for start, about in (
        ("created kind=own key", own["id"]),
        ("listed", "ns/acme/ann"),
        ("revoked", f"subject={own['id']}"),
    ):
        assert [line for line in lines if line.startswith(start) and about in line][1:] == []
        assert any(line.startswith(start) and about in line for line in lines), lines
    assert any("by=ns/acme/ann" in line for line in lines)
    assert not any(own["key"] in line for line in lines)


async def test_a_key_cannot_be_made_from_its_id_without_the_signing_key(tmp_path: Path) -> None:
    async with routers(tmp_path, 1) as (one,):
        own = await created(one)
        record: SignedKey = read(own["key"])
        assert await status(one, mint(record, "x" * 32)) == 401
        assert mint(record, SECRET) == own["key"]
