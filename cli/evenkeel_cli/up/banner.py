"""What `evenkeel up` shows once the fleet is ready: who may send what where, and a command that works."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from evenkeel_contract.routerconfig import Anonymous
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evenkeel_cli.manifest import Manifest
from evenkeel_cli.up.fleet import Fleet

PROGRAM: Final = "evenkeel"


def banner(manifest: Manifest, fleet: Fleet) -> RenderableType:
    """Clients with their keys and weights, the addresses, and a curl line."""
    keys = dict(manifest.api_keys())
    table = Table("tenant", "client", "weight", "API key", title="who shares the fleet", box=None)
    for tenant in manifest.tenants:
        for client in tenant.spec.clients:
            name = f"{tenant.metadata.name}/{client.name}"
            weight = f"{tenant.spec.weight} · {client.weight}"
            table.add_row(tenant.metadata.name, client.name, weight, keys.get(name, "–"))
    key = next(iter(keys.values()), None)
    lines = [
        f"router  {fleet.url}/v1    model {manifest.service.spec.model.name}",
        *(f"        {router.url}/v1    {router.name}" for router in fleet.routers[1:]),
        f"watch   {command()} top --url {fleet.admin_url}",
        "stop    Ctrl-C",
        "",
        "Try it:",
        "",
    ]
    hint = [] if key or _open(manifest) else ["(no API key in the file: requests will be 401)"]
    curl = Text(curl_line(fleet.url, manifest.service.spec.model.name, key), style="bold")
    return Group("", table, "", *lines, curl, *hint, "")


def command() -> str:
    """How this program can be called again: its name, or its path where the shell would not find it."""
    called = sys.argv[0]
    if Path(called).name != PROGRAM or shutil.which(PROGRAM) == shutil.which(called):
        return PROGRAM
    return shlex.quote(called)


def curl_line(url: str, model: str, key: str | None) -> str:
    """A streaming chat completion, to be pasted into a shell."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Why does an even keel matter?"}],
        "max_tokens": 32,
        "stream": True,
    }
    words = ["curl", "-N", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    if key is not None:
        words += ["-H", f"Authorization: Bearer {key}"]
    return shlex.join([*words, "-d", json.dumps(body)])


def _open(manifest: Manifest) -> bool:
    return manifest.service.spec.tenancy.anonymous is Anonymous.SHARE
