"""Signed keys at real routers: accepted without a list, revoked at all of them, and also after a restart of all."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest
from evenkeel_contract import revocations
from evenkeel_contract.revocations import (
    REVOCATIONS_PATH,
    RevocationMessage,
    RevocationsError,
    decode,
    encode,
    revocation_of,
)
from evenkeel_contract.routerconfig import PeerConfig, RouterConfig, StateConfig, TenancyConfig
from evenkeel_contract.signedkeys import SignedKey, SignedKeysConfig, SigningKeyConfig, mint
from evenkeel_router.app import Router, running

from tests.support.routers import PATIENCE_S, QUICK, applied, config_for, sha256, tenancy, until

SECRET = "s" * 32
SIGNED = SignedKeysConfig(keys=(SigningKeyConfig(id="a", secret=SECRET),))
TOKEN = "admin"


def key(client: str = "ann", **changes: object) -> str:
    now = int(time.time())
    record = SignedKey("a", f"id-{client}", "ns", "acme", client, now - 10, now + 3600)
    return mint(msgspec.structs.replace(record, **changes), SECRET)


def config(file: Path, *peers: PeerConfig, allowed: TenancyConfig | None = None) -> RouterConfig:
    return config_for(
        tenancy=allowed or tenancy(signed_keys=SIGNED),
        admin_token_sha256=sha256(TOKEN),
        state=StateConfig(
            peers=peers, peer_token=TOKEN, exchange_interval_s=0.05, revocations=str(file)
        ),
    )


@asynccontextmanager
async def routers(folder: Path, count: int = 3) -> AsyncIterator[list[Router]]:
    """Routers that know each other, each with its own file."""
    async with AsyncExitStack() as stack:
        found: list[Router] = []
        for number in range(count):
            one = running(config(folder / f"{number}.json"), timing=QUICK)
            found.append(await stack.enter_async_context(one))
        for number, one in enumerate(found):
            peers = (
                PeerConfig(name=f"r{i}", url=f"http://127.0.0.1:{other.admin_port}")
                for i, other in enumerate(found)
                if other is not one
            )
            applied(one.rooms, config(folder / f"{number}.json", *peers))
        yield found


async def status(router: Router, credential: str) -> int:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        headers = {"Authorization": f"Bearer {credential}"}
        return (await client.get(f"{router.url}/v1/models", headers=headers)).status_code


async def revoke(router: Router, subject: str, *, token: str = TOKEN) -> int:
    message = RevocationMessage((revocation_of(subject, time.time()),))
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as client:
        url = f"http://127.0.0.1:{router.admin_port}{REVOCATIONS_PATH}"
        return (await client.put(url, content=encode(message))).status_code


async def test_a_revoked_key_is_refused_by_every_router_and_after_a_restart(tmp_path: Path) -> None:
    async with routers(tmp_path) as three:
        assert [await status(one, key()) for one in three] == [200, 200, 200]
        assert await revoke(three[0], "id-ann") == 204
        assert await status(three[0], key()) == 401
        await until(lambda: all(one.rooms.intake.revocations.count for one in three), "all know it")
        assert [await status(one, key()) for one in three] == [401, 401, 401]
        assert [await status(one, key("bob")) for one in three] == [200, 200, 200]
        await until(lambda: all((tmp_path / f"{n}.json").exists() for n in range(3)), "stored")
    async with routers(tmp_path) as three:
        assert [await status(one, key()) for one in three] == [401, 401, 401]


async def test_a_router_that_joins_learns_what_is_revoked_before_it_serves(tmp_path: Path) -> None:
    async with routers(tmp_path, 1) as (old,):
        assert await revoke(old, "ns/acme") == 204
        peer = PeerConfig(name="old", url=f"http://127.0.0.1:{old.admin_port}")
        async with running(config(tmp_path / "new.json", peer), timing=QUICK) as new:
            assert await status(new, key()) == 401
            assert await status(new, key(issued_s=int(time.time()) + 5)) == 200


async def test_only_who_has_the_admin_token_revokes(tmp_path: Path) -> None:
    async with routers(tmp_path, 1) as (one,):
        assert await revoke(one, "id-ann", token="other") == 401
        assert await status(one, key()) == 200
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            url = f"http://127.0.0.1:{one.admin_port}{REVOCATIONS_PATH}"
            assert (await client.put(url, content=b'{"revocations": [{}]}')).status_code == 400
            assert decode((await client.get(url)).content).revocations == ()


async def test_a_revocation_that_cannot_be_stored_is_in_force_and_reported(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    async with running(config(folder / "f.json"), timing=QUICK) as one:
        folder.rmdir()
        assert await revoke(one, "id-ann") == 503
        assert await status(one, key()) == 401
        folder.mkdir()
        await until(lambda: (folder / "f.json").exists(), "stored later")


async def test_a_revocation_that_finds_no_room_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with routers(tmp_path, 1) as (one,):
        assert await revoke(one, "id-ann") == 204
        monkeypatch.setattr(revocations, "MAX_REVOCATIONS", 1)
        assert await revoke(one, "id-bob") == 400
        assert await revoke(one, "id-ann") == 204
        assert await status(one, key("bob")) == 200


async def test_a_router_does_not_start_with_a_file_that_it_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text("{")
    with pytest.raises(RevocationsError):
        async with running(config(file), timing=QUICK):
            pass


async def test_a_change_of_signing_keys_needs_no_restart(tmp_path: Path) -> None:
    async with running(config(tmp_path / "f.json"), timing=QUICK) as one:
        assert await status(one, key()) == 200
        other = SignedKeysConfig(keys=(SigningKeyConfig(id="b", secret="o" * 32),))
        allowed = tenancy(signed_keys=other)
        applied(one.rooms, config(tmp_path / "f.json", allowed=allowed))
        assert await status(one, key()) == 401
        both = replace(other, keys=(*SIGNED.keys, *other.keys))
        applied(one.rooms, config(tmp_path / "f.json", allowed=replace(allowed, signed_keys=both)))
        assert await status(one, key()) == 200


async def test_refused_keys_are_counted_by_reason_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evenkeel_router.request.audit")
    async with running(config(tmp_path / "f.json"), timing=QUICK) as one:
        old = key(issued_s=1, expires_s=2)
        for _ in range(5):
            assert await status(one, old) == 401
        assert await status(one, "sk-unknown") == 401
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"http://127.0.0.1:{one.probe_port}/metrics")).text
    assert (
        'evenkeel_router_credentials_refused_total{model_name="llama",reason="expired"} 5' in page
    )
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 2
    assert "ns/acme/ann: expired" in lines[0]
    assert "address 127.0.0.1: unknown_key" in lines[1]
    assert not any(old in line or "sk-unknown" in line for line in lines)
