"""The summary that `evenkeel up` prints once the fleet is ready: clients, keys, addresses, a curl command."""

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
    table = Table("tenant", "client", "weight", "API key", title="clients of the fleet", box=None)
    for tenant in manifest.tenants:
        for client in tenant.spec.clients:
            name = f"{tenant.metadata.name}/{client.name}"
            weight = f"{tenant.spec.weight} · {client.weight}"
            table.add_row(tenant.metadata.name, client.name, weight, keys.get(name, "–"))
    key = next(iter(keys.values()), None)
    first, *others = fleet.routers
    lines = [
        f"router  {first.url}/v1    model {manifest.service.spec.model.name}",
        *(f"        {router.url}/v1    {router.name}" for router in others),
        f"watch   {command()} top --url {first.admin_url}",
        "stop    Ctrl-C",
        "",
        "Try it:",
        "",
    ]
    hints = []
    if key is None and manifest.service.spec.tenancy.anonymous is not Anonymous.SHARE:
        hints.append("(the file has no API key: requests get 401)")
    if not fleet.replicas:
        hints.append("(spec.engine.replicas is 0: requests get 503 until you change it)")
    curl = Text(curl_line(first.url, manifest.service.spec.model.name, key), style="bold")
    return Group("", table, "", *lines, curl, *hints, "")


def command() -> str:
    """How to call this program again: its name, or its path if the name is not on PATH."""
    called = sys.argv[0]
    if Path(called).name != PROGRAM or shutil.which(PROGRAM) == shutil.which(called):
        return PROGRAM
    return shlex.quote(called)


def curl_line(url: str, model: str, key: str | None) -> str:
    """A command for a shell that streams a chat completion."""
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
