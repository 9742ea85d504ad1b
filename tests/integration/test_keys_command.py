"""`evenkeel keys` against a real router: revocations are in force when the command returns."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from evenkeel_cli.main import build
from evenkeel_router.app import running
from typer.testing import CliRunner, Result

from tests.integration.test_router_signed_keys import TOKEN, config, key, status
from tests.support.routers import QUICK


def run(*words: str) -> Result:
    return CliRunner().invoke(build(["keys"]), ["keys", *words])


async def test_revoked_keys_are_refused_and_listed(tmp_path: Path) -> None:
    async with running(config(tmp_path / "f.json"), timing=QUICK) as one:
        at = ("--url", f"http://127.0.0.1:{one.admin_port}", "--token", TOKEN)
        denied = await asyncio.to_thread(run, "list", *at[:2])
        assert (denied.exit_code, "--token" in denied.stderr) == (1, True)
        found = await asyncio.to_thread(run, "revoke", "--id", "id-ann", *at)
        assert found.exit_code == 0, found.output
        assert [await status(one, key(name)) for name in ("ann", "bob", "eve")] == [401, 200, 200]
        named = ("--namespace", "ns", "--tenant", "acme", "--client", "bob")
        await asyncio.to_thread(run, "revoke", *named, *at)
        assert [await status(one, key(name)) for name in ("ann", "bob", "eve")] == [401, 401, 200]
        listed = json.loads((await asyncio.to_thread(run, "list", *at, "--json")).stdout)
        assert {entry["subject"] for entry in listed} == {"id-ann", "ns/acme/bob"}
        lasts = [entry["until_s"] - entry["revoked_s"] for entry in listed]
        assert max(lasts) <= 366 * 24 * 3600 + 1
        assert "id-ann  revoked" in (await asyncio.to_thread(run, "list", *at)).stdout
