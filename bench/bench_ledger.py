"""The ledger with many clients on many replicas: memory, merge throughput, bytes exchanged (design R3).

    python bench/bench_ledger.py [--clients 100000] [--replicas 64] [--changed 1000]

Every client is known to every replica: 6.4 million rows by default. Steps, in seconds of one core: a router takes in a
first report of every replica; a new router takes over the whole ledger from it; a second later `changed` clients
changed at every replica, and both ask the replicas, then each other; one replica departs and is compacted into the
closed totals; a second router takes over the new closed totals. Takes about 7 GiB and two minutes at the default
size.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

from evenkeel_contract import ledgerwire
from evenkeel_contract.ledgerwire import decode_delta
from evenkeel_fairshare.ledger import (
    CarryRules,
    Compactor,
    Delta,
    Digest,
    Ledger,
    ReplicaRow,
    promise,
)


@contextmanager
def timed(what: str, items: int, unit: str) -> Iterator[None]:
    """Print how much of one core it took."""
    begin = time.process_time()
    yield
    seconds = time.process_time() - begin
    print(f"{what:<52} {seconds:8.3f} s {items / seconds / 1e6:9.3f} M {unit}/s", flush=True)


def new_ledger(router: str) -> Ledger:
    return Ledger(router, rules=CarryRules(quantum=8000, overshoot=300_000))


def row(client: str, served: int) -> ReplicaRow:
    amount = float(served)
    return ReplicaRow(
        client, 3 * amount, 3 * amount, amount, -amount, waiting=1, tenant_deficit=amount
    )


def over_the_wire(delta: Delta) -> tuple[Delta, int]:
    """The message as routers send it, and its size in bytes."""
    data = ledgerwire.encode(delta)
    return decode_delta(data), len(data)


def digest_bytes(digest: Digest) -> int:
    return len(ledgerwire.encode(digest))


def observe_all(here: Ledger, clients: list[str], replicas: int, sequence: int) -> None:
    rows = [row(client, sequence) for client in clients]
    for replica in range(replicas):
        name = f"replica-{replica}"
        here.observe(name, since=here.sequence(name), sequence=sequence, rows=rows)


def resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


def take_in(clients: list[str], replicas: int) -> tuple[Ledger, Ledger]:
    """Two routers with the whole ledger: one from the replicas, one from the first router."""
    total = len(clients) * replicas
    here, there = new_ledger("router-a"), new_ledger("router-b")
    before_mib = resident_mib()
    with timed("first reports of all replicas", total, "rows"):
        observe_all(here, clients, replicas, sequence=1)
    mib = resident_mib() - before_mib
    print(f"    {mib:.0f} MiB per router, {mib * 2**20 / total:.0f} bytes per row")
    with timed("own accounts of what was received", total, "rows"):
        for name in here.replica_accounts:
            for client in clients:
                here.received(name, client, 1.0)
    mib = resident_mib() - before_mib
    print(f"    {mib:.0f} MiB per router with its own accounts")
    with timed("whole ledger written", total, "rows"):
        delta = here.delta(there.digest())
    with timed("whole ledger encoded and decoded", total, "rows"):
        delta, size = over_the_wire(delta)
    with timed("whole ledger merged by a new router", total, "rows"):
        there.merge(delta)
    print(f"    {size / 2**20:.1f} MiB on the wire, {size / total:.1f} bytes per row")
    with timed("the same merged again: nothing new", total, "rows"):
        there.merge(delta)
    return here, there


def a_second_later(here: Ledger, there: Ledger, changed: list[str], replicas: int) -> None:
    total = len(changed) * replicas
    with timed("reports of what changed, one router", total, "rows"):
        observe_all(here, changed, replicas, sequence=2)
    observe_all(there, changed, replicas, sequence=2)
    with timed("exchange when both asked the replicas", total, "rows"):
        delta, size = over_the_wire(here.delta(there.digest()))
        there.merge(delta)
    print(f"    {size} bytes, digest {digest_bytes(there.digest())} bytes")
    observe_all(here, changed, replicas, sequence=3)
    with timed("exchange when only one had asked", total, "rows"):
        delta, size = over_the_wire(here.delta(there.digest()))
        there.merge(delta)
    print(f"    {size / 2**20:.2f} MiB, {size / total:.1f} bytes per row")


def a_replica_departs(here: Ledger, there: Ledger, clients: list[str], replicas: int) -> None:
    live = [f"replica-{replica}" for replica in range(1, replicas)]
    members = [here.router, there.router]
    there.members = frozenset(members)
    here.merge(
        there.delta(here.digest())
    )  # each router gets the accounts and closed totals of the other
    compactor = Compactor(here)
    here.touched.clear()
    with timed("taking over as the router that compacts", len(clients) * replicas, "rows"):
        compactor.compact(members, live=["replica-0", *live], now_s=0)
    for one in (here, there):
        one.closed("replica-0")
    for reader, writer in ((here, there), (there, here)):
        reader.merge(over_the_wire(writer.delta(reader.digest()))[0])
    here.touched.clear()
    with timed("one replica closed and added to the closed totals", len(clients), "clients"):
        assert compactor.compact(members, live=live, now_s=1)
    with timed("the new book taken over by a peer", len(clients), "clients"):
        delta, size = over_the_wire(here.delta(there.digest()))
        there.merge(delta)
    print(f"    {size / 2**20:.1f} MiB, {size / len(clients):.1f} bytes per client")
    joined = [*live, "replica-new"]
    some = clients[:: max(1, len(clients) // 1000)]
    with timed("seeds of clients at a new replica", len(some), "seeds"):
        for client in some:
            promise(here, client, "replica-new", live=joined)
    with timed("service over all incarnations", len(some), "clients"):
        for client in some:
            here.served(client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--changed", type=int, default=1000, help="clients that change in a second")
    args = parser.parse_args()
    clients = [f"namespace/tenant-{n % 100}/client-{n}" for n in range(args.clients)]
    here, there = take_in(clients, args.replicas)
    a_second_later(here, there, clients[: args.changed], args.replicas)
    a_replica_departs(here, there, clients, args.replicas)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"    peak of the process, two routers in it: {peak_mib:.0f} MiB")


if __name__ == "__main__":
    main()
