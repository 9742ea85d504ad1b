"""Every listening part on all addresses: two simulated replicas, a router, the operator's probes.

`python -m tests.support.families PORT ADDRESS…`: prints, for each address, what is answered there, as JSON. It uses twelve ports from PORT.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack

import httpx
from evenkeel_contract.routerconfig import (
    SIMULATOR_TOKENIZER,
    ListenConfig,
    PrefixConfig,
    PrefixMode,
    ReplicaConfig,
)
from evenkeel_operator.metrics import serving
from evenkeel_router.app import running
from evenkeel_router.prefix.kv_follower import SyncState
from evenkeel_simulator.server.app import running_server

from tests.support.routers import KEY, MODEL, QUICK, config_for, routable, simulated, until

TOKENS = PrefixConfig(mode=PrefixMode.TOKENS, tokenizer=SIMULATOR_TOKENIZER)


async def answers(first_port: int, addresses: list[str]) -> dict[str, list[int]]:
    """Address → status of a completion, of the router's probe and of the operator's metrics. The replicas are at the first address."""
    async with AsyncExitStack() as stack:
        ports = iter(range(first_port, first_port + 12))
        traffic, probe, admin, operator = (next(ports) for _ in range(4))
        listen = ListenConfig(host="::", traffic_port=traffic, probe_port=probe, admin_port=admin)
        host = addresses[0]
        found = []
        for number in range(2):
            settings = simulated(
                host="::",
                port=next(ports),
                reports_port=next(ports),
                kv_events_port=next(ports),
                kv_replay_port=next(ports),
            )
            server = await stack.enter_async_context(running_server(settings))
            named = {
                name: None if value is None else value.replace("[::]", host)
                for name, value in (
                    ("reports", server.reports),
                    ("kv_events", server.kv_events),
                    ("kv_replay", server.kv_replay),
                )
            }
            found.append(
                ReplicaConfig(name=f"r{number}", url=server.url.replace("[::]", host), **named)
            )
        await stack.enter_async_context(serving("::", operator))
        config = config_for(*found, listen=listen, prefix=TOKENS)
        router = await stack.enter_async_context(running(config, timing=QUICK))
        await routable(router, 2)
        rooms = router.rooms
        await until(lambda: rooms.replicas.reports.keys() == {"r0", "r1"}, "reports")
        await until(
            lambda: (
                [one.sync_state for one in rooms.prefixes.followers.values()]
                == [SyncState.IN_SYNC] * 2
            ),
            "KV events",
        )
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
            body = {"model": MODEL, "prompt": "Ahoy", "max_tokens": 2}

            async def of(address: str) -> list[int]:
                base = f"http://{address}"
                completion = await client.post(f"{base}:{traffic}/v1/completions", json=body)
                gets = (f"{base}:{probe}/readyz", f"{base}:{operator}/metrics")
                return [completion.status_code, *[(await client.get(one)).status_code for one in gets]]  # fmt: skip

            return {address: await of(address) for address in addresses}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(answers(int(sys.argv[1]), sys.argv[2:]))))
