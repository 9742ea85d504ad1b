"""A changed weight among many tenants: what a router decodes, and the longest piece of its event loop.

    python bench/router/tenants.py --tenants 10000 100000

Compares the shards of tenants with one document that is decoded and applied as a whole, as before version 0.4. Prints
CPU milliseconds in all, and of the longest step between two of which the event loop serves requests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Generator
from dataclasses import replace

from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    RouterConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_contract.routerdocument import dump_router_config, parse_router_config
from evenkeel_contract.tenantshards import (
    Index,
    read_shard,
    shard_count,
    slot_of,
    write_shard,
    write_tenant,
)
from evenkeel_router.api.identity import Directory
from evenkeel_router.cluster.tenant_shards import TenantTable
from evenkeel_router.ledger.weights import ConfiguredWeights
from evenkeel_router.slices import SLICE_S
from evenkeel_router.telemetry.rooms import Rooms


def tenant(number: int, weight: int = 1) -> TenantConfig:
    name = f"tenant-{number:06}"
    key = hashlib.sha256(name.encode()).hexdigest()
    return TenantConfig(
        namespace="ns",
        name=name,
        weight=weight,
        clients=(ClientConfig(name="chat"),),
        api_keys=(ApiKeyConfig(name="key-1", client="chat", sha256=key),),
    )


def cost_ms(steps: Generator[object, None, object]) -> tuple[float, float, object]:
    """CPU time of all steps, of the longest slice of them, and their result."""
    longest_s = 0.0
    begin_s = slice_s = time.thread_time()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            now_s = time.thread_time()
            longest_s = max(longest_s, now_s - slice_s)
            return 1e3 * (now_s - begin_s), 1e3 * longest_s, end.value
        now_s = time.thread_time()
        if now_s - slice_s >= SLICE_S:
            longest_s = max(longest_s, now_s - slice_s)
            slice_s = now_s


def measure(count: int) -> dict[str, float]:
    """One number of tenants."""
    tenants = [tenant(number) for number in range(count)]
    core = RouterConfig(namespace="ns", service="s", model="m")
    raws = {one.name: write_tenant(one) for one in tenants}
    number = shard_count([(slot_of(name), len(raw)) for name, raw in raws.items()])

    def shards() -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {str(n): [] for n in range(number)}
        for name, raw in raws.items():
            found[str(slot_of(name) % number)].append(raw)
        return found

    table, document = TenantTable(), dump_router_config(core)
    index = Index(shards=dict.fromkeys(map(str, range(number)), "digest"))
    _, _, loaded = cost_ms(table.load(document, index, shards()))
    assert isinstance(loaded, tuple)
    rooms = Rooms.make(core)
    cost_ms(rooms.apply(loaded[0]))
    changed = tenant(count // 2, weight=7)
    raws[changed.name] = write_tenant(changed)
    held = shards()
    content = write_shard(held[str(slot_of(changed.name) % number)])
    begin_s = time.thread_time()
    read_shard(content)
    read_ms = 1e3 * (time.thread_time() - begin_s)
    decode_ms, longest_decode_ms, loaded = cost_ms(table.load(document, index, held))
    assert isinstance(loaded, tuple)
    apply_ms, longest_apply_ms, _ = cost_ms(rooms.apply(loaded[0]))
    assert rooms.service_ledger.weights.tenant(f"ns/{changed.name}") == 7.0
    tenants[count // 2] = changed
    whole = dump_router_config(replace(core, tenancy=TenancyConfig(tenants=tuple(tenants))))
    begin_s = time.thread_time()
    config, _ = parse_router_config(whole)
    before_decode_ms = 1e3 * (time.thread_time() - begin_s)
    assert config is not None
    begin_s = time.thread_time()
    directory = Directory(config.tenancy, namespace="ns")
    for one in tenants:  # as before: all clients are made at once
        directory._client(one, "chat")
    ConfiguredWeights(config.tenancy)
    return {
        "tenants": count,
        "shards": number,
        "before: decode in one piece, ms": round(before_decode_ms, 1),
        "before: apply in one piece, ms": round(1e3 * (time.thread_time() - begin_s), 1),
        "read the changed shard (a thread), ms": round(read_ms, 1),
        "decode, ms": round(decode_ms, 1),
        "decode, longest slice, ms": round(longest_decode_ms, 2),
        "apply, ms": round(apply_ms, 1),
        "apply, longest slice, ms": round(longest_apply_ms, 2),
    }


def main() -> None:
    """Print one JSON object for each number of tenants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenants", type=int, nargs="+", default=[10_000])
    for count in parser.parse_args().tenants:
        print(json.dumps(measure(count), indent=2))


if __name__ == "__main__":
    main()
