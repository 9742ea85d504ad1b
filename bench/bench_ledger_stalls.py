"""How long a router's ledger work blocks its event loop (design R3; docs/design/0003).

    python bench/bench_ledger_stalls.py [--clients 10000] [--replicas 64] [--active 500]

Everything is done in steps, between which requests are served: this prints the longest step and the sum of each task, in CPU time of one core.
Every client is known to every replica; then `active` clients change at every replica, twice; one replica departs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator

from evenkeel_contract.ledgerwire import decode_delta, encode
from evenkeel_contract.reports import ClientReport
from evenkeel_contract.routerconfig import RouterConfig, TenancyConfig, TenantConfig
from evenkeel_fairshare.ledger import Compactor
from evenkeel_router.api.identity import UNPAID, client_of
from evenkeel_router.fleet.reports import PIECE
from evenkeel_router.telemetry.rooms import Rooms

TENANTS = tuple(TenantConfig(namespace="n", name=f"t{n}") for n in range(50))


def measure(what: str, steps: Iterable[object]) -> None:
    """Do all steps; print what the longest and all took."""
    durations_s = []
    begin_s = time.thread_time()
    for _ in steps:
        now_s = time.thread_time()
        durations_s.append(now_s - begin_s)
        begin_s = time.thread_time()
    durations_s.append(time.thread_time() - begin_s)
    longest, total = 1e3 * max(durations_s), 1e3 * sum(durations_s)
    print(f"{what:<44} longest {longest:7.1f} ms   all {total:9.1f} ms", flush=True)


def router() -> Rooms:
    tenancy = TenancyConfig(tenants=TENANTS)
    rooms = Rooms.make(RouterConfig(namespace="n", service="s", model="m", tenancy=tenancy))
    rooms.service_ledger.ledger.members = frozenset({rooms.service_ledger.ledger.router})
    return rooms


def reports(rooms: Rooms, clients: list[str], replicas: int, at: int) -> Iterator[None]:
    """Every replica reports; merged in steps, as in the router."""
    told = [
        ClientReport(name, at, at, at, 3.0 * at, 3.0 * at, 1.0 * at, at, -5.0 * at, 1.0, at - 1, 0)
        for name in clients
    ]
    for replica in range(replicas):
        for begin in range(0, len(told), PIECE):
            rooms.service_ledger.accounting.observe(
                f"incarnation-{replica}",
                told[begin : begin + PIECE],
                policy="DLPM",
                sequence=at,
                since=None if begin + PIECE < len(told) else 0,
            )
            yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--active", type=int, default=500)
    arguments = parser.parse_args()
    rooms = router()
    everybody = [
        client_of(TENANTS[n % len(TENANTS)], f"c{n}").identity for n in range(arguments.clients)
    ]
    active = everybody[: arguments.active]
    for replica in range(arguments.replicas):
        rooms.service_ledger.accounting.meets(
            f"r{replica}", f"incarnation-{replica}", policy="DLPM", now_s=0.0
        )
    compactor, members = (
        Compactor(rooms.service_ledger.ledger),
        frozenset({rooms.service_ledger.ledger.router}),
    )

    def figures(now_s: float) -> Iterator[None]:
        return rooms.service_ledger.fairness.steps(
            rooms.service_ledger.accounting.alive, rooms.service_ledger.weights, now_s
        )

    def compact(now_s: float) -> Iterator[None]:
        return compactor.steps(members, live=rooms.service_ledger.accounting.alive, now_s=now_s)

    measure("first reports", reports(rooms, everybody, arguments.replicas, 1))
    measure("first figures", figures(1.0))
    measure("first closed totals", compact(1.0))
    for at in (2, 3):
        measure("reports of who is active", reports(rooms, active, arguments.replicas, at))
        measure("figures", figures(float(at)))
        measure("closed totals", compact(float(at)))
    rooms.service_ledger.accounting.meets("r0", "another", policy="DLPM", now_s=10.0)
    rooms.service_ledger.accounting.close(20.0, settled=True)
    measure(
        "what the departed one left", rooms.service_ledger.ledger.closing_steps("incarnation-0")
    )
    clients = [client_of(TENANTS[n % len(TENANTS)], f"c{n}") for n in range(200)]
    measure(
        "seeds for 200 clients, one by one",
        (
            rooms.service_ledger.accounting.sends("r0", client, paid=UNPAID, now_s=20.0)
            for client in clients
        ),
    )
    measure("the departed one added to the closed totals", compact(20.0))
    written: list[bytes] = []
    measure(
        "whole ledger written for a peer",
        (written.append(encode(part)) for part in rooms.service_ledger.ledger.parts()),
    )
    other = router()
    measure(
        "whole ledger merged by a peer",
        (other.service_ledger.ledger.merge(decode_delta(part)) for part in written),
    )
    print(f"    {sum(map(len, written)) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
