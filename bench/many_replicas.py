"""What a router's ledger costs beside many replicas and routers: CPU time of one core, and bytes (design R21).

    python -m bench.many_replicas [--before COMMIT] [--only reports|rows|bytes|service|dispatch|exchange]

Reports without news: every replica reports once a second that nothing changed. Bytes: memory of a router's ledger for each pair of client and
replica, after every router received something for it and the replica reported all of that: at once, and after the looks of a minute. Served: the service of one client that every
replica knows. Dispatch: the first request of a client at a replica that joined a while ago, while the others know the client and
hold a seed of it. Idle exchange: one router asks all others, and answers all, while nothing changes; its messages are encoded and
decoded, and HTTP is left out.

With `--before` a second process measures an older commit in the same run, and the last column is the ratio. It takes about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evenkeel_contract import ledgerwire
from evenkeel_contract.reports import REPORT_VERSION, ClientReport, Report
from evenkeel_contract.routerconfig import ReplicaConfig, RouterConfig
from evenkeel_fairshare import ledger as ledgers
from evenkeel_fairshare.ledger import CarryRules, Compactor, Ledger, ReplicaRow, promise
from evenkeel_router.fleet.health import HealthMonitor
from evenkeel_router.fleet.reports import Reports
from evenkeel_router.request.relocation import Relocation
from evenkeel_router.telemetry.rooms import Rooms

ROOT = Path(__file__).resolve().parent.parent
CLIENT = "ns/tenant/client"
RULES = CarryRules(quantum=8000, overshoot=300_000)


def cpu_s(work: Callable[[], object], times: int) -> float:
    """CPU seconds of one call, the least of three series."""
    series = []
    for _ in range(3):
        begin = time.process_time()
        for _ in range(times):
            work()
        series.append((time.process_time() - begin) / times)
    return min(series)


def reports_without_news(replicas: int) -> float:
    """CPU ms per second of a router that gets a report without news of each replica once a second."""
    return asyncio.run(_reports_without_news(replicas))


async def _reports_without_news(replicas: int) -> float:
    names = [f"replica-{n}" for n in range(replicas)]
    config = RouterConfig(namespace="ns", service="svc", model="model")
    rooms = Rooms.make(config, incarnation="router")
    fleet, accounting = rooms.replicas.fleet, rooms.service_ledger.accounting
    now = asyncio.get_running_loop().time
    listener = Relocation(fleet, accounting, rooms.intake.unanswered, now)
    monitor: Any = HealthMonitor(rooms.settings, rooms.replicas, rooms.service_ledger, OFFLINE)
    reports = Reports(
        rooms.settings,
        rooms.replicas,
        rooms.service_ledger,
        health_monitor=monitor,
        listener=listener,
    )
    served = tuple(ClientReport(f"ns/t/c{n}", 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 0) for n in range(10))
    for name in names:
        rooms.replicas.configured[name] = ReplicaConfig(name=name, url=f"http://{name}")
        first = Report(REPORT_VERSION, f"{name}-1", 1, 0, "DLPM", served)
        await reports._take(name, first)
        fleet.ready(fleet.add(name))
    rooms.service_ledger.ledger.members = frozenset({"router"})

    async def second() -> None:
        for name in names:
            await reports._take(name, Report(REPORT_VERSION, f"{name}-1", 1, 1, "DLPM", ()))
        accounting.close(now(), settled=True)

    taken = []
    for _ in range(3):
        begin = time.process_time()
        await second()
        taken.append(time.process_time() - begin)
    reports._context.destroy(linger=0)
    return min(taken) * 1000


OFFLINE: Any = None
"""No replica is probed."""


def router_name(number: int) -> str:
    """A name as long as those of real router processes."""
    return f"{number:013x}-{number:08x}"


def replica_name(number: int) -> str:
    """A name as long as those of real replica processes."""
    return f"{number:032x}"


def known_everywhere(replicas: int, routers: int, *, seed: float = 0.0) -> Ledger:
    """A ledger in which every replica reported the client, and every router received something for it there."""
    here = Ledger(router_name(0), rules=RULES)
    here.members = frozenset(map(router_name, range(routers)))
    for name in map(replica_name, range(replicas)):
        row = ReplicaRow(CLIENT, 30.0, 30.0, 3.0, seed=seed, tenant_seed=seed)
        if seed:
            here.promised(name, CLIENT, seed=seed, tenant_seed=seed)
        here.observe(name, since=0, sequence=1, rows=[row])
    for router in range(routers):
        there = Ledger(router_name(router), rules=RULES)
        there.requested({CLIENT: 1.0})
        for name in map(replica_name, range(replicas)):
            there.received(name, CLIENT, 1.0)
        here.merge(there.delta())
    return here


def one_clients_service(replicas: int, routers: int) -> float:
    """CPU ms to read one client's service."""
    here = known_everywhere(replicas, routers)
    return cpu_s(lambda: here.served(CLIENT), 20) * 1000


def changed_rows(routers: int) -> tuple[float, float]:
    """CPU µs to book one request, and to take one changed row of a report; of 1,000 clients at one of 8 replicas."""
    clients = [f"ns/tenant/{n}" for n in range(1000)]
    here = known_everywhere(8, routers)
    name = replica_name(0)

    def book() -> None:
        for client in clients:
            here.received(name, client, 1.0)

    reports = iter(
        [ReplicaRow(client, 30.0 * n, 30.0 * n, 3.0 * n, waiting=1) for client in clients]
        for n in range(2, 20)
    )
    book()  # the first requests make the rows
    booked_us = cpu_s(book, 5) * 1000

    def take() -> None:
        at = here.sequence(name)
        here.observe(name, since=at, sequence=at + 1, rows=next(reports))

    take()
    return booked_us, cpu_s(take, 3) * 1000


def bytes_per_row(routers: int) -> tuple[float, float]:
    """Memory of one router's ledger for each of 2,000 clients at each of 8 replicas, through which every router sent requests: when all is
    reported, and after three looks at what reports cover."""
    clients, replicas = [f"ns/tenant/{n}" for n in range(2000)], [replica_name(n) for n in range(8)]
    rows = [ReplicaRow(client, 30.0 * routers, 30.0 * routers, 3.0) for client in clients]
    gc.collect()
    tracemalloc.start()
    here = Ledger(router_name(0), rules=RULES)
    here.members = frozenset(map(router_name, range(routers)))
    for router in range(routers):
        there = here if router == 0 else Ledger(router_name(router), rules=RULES)
        for name in replicas:
            for client in clients:
                there.received(name, client, 30.0)
        if there is not here:
            for part in there.parts():
                here.merge(ledgerwire.decode_delta(ledgerwire.encode(part)))
    for name in replicas:
        here.observe(name, since=0, sequence=1, rows=rows)
    assert here.served(clients[0]) == 30.0 * routers * len(replicas)
    del there
    gc.collect()
    at_once, _ = tracemalloc.get_traced_memory()
    # An older commit has no such look.
    looks = getattr(here, "drop_covered", lambda *_: ())
    for _ in range(3):
        for _ in looks(frozenset(replicas), lambda *_: False):
            pass
    assert here.served(clients[0]) == 30.0 * routers * len(replicas)
    gc.collect()
    later, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rows = len(clients) * len(replicas)
    return at_once / rows, later / rows


def covered_look(routers: int) -> float:
    """CPU µs of a look at what reports cover for each of 2,000 clients whose rows it drops, of all routers."""
    clients, name = [f"ns/tenant/{n}" for n in range(2000)], replica_name(0)
    taken = []
    for _ in range(3):
        here = Ledger(router_name(0), rules=RULES)
        for router in range(routers):
            there = here if router == 0 else Ledger(router_name(router), rules=RULES)
            for client in clients:
                there.received(name, client, 30.0)
            if there is not here:
                here.merge(there.delta())
        total = 30.0 * routers
        rows = [ReplicaRow(client, total, total, 3.0) for client in clients]
        here.observe(name, since=0, sequence=1, rows=rows)
        looks = getattr(here, "drop_covered", None)
        if looks is None:
            return 0.0
        for _ in looks(frozenset({name}), lambda *_: False):
            pass
        begin = time.process_time()
        for _ in looks(frozenset({name}), lambda *_: False):
            pass
        taken.append(time.process_time() - begin)
        assert not here.replica_accounts[name].accounts[here.router].clients
    return min(taken) * 1e6 / len(clients)


def begun(has_row: bool) -> float:
    """CPU ns to note that a client has a request at a replica again, where it has a row of what was received, or none."""
    name = replica_name(0)
    here = known_everywhere(8, 1)
    if not hasattr(here, "begins"):
        return 0.0
    here.observe(name, since=1, sequence=2, rows=[ReplicaRow("ns/tenant/new", 0.0, 0.0, 0.0)])
    client = CLIENT if has_row else "ns/tenant/new"
    return cpu_s(lambda: here.begins(name, client), 20_000) * 1e9


def first_dispatch(replicas: int, routers: int) -> float:
    """CPU ms for the seed of a client at a replica that does not know it, while all others have a seed of it."""
    here = known_everywhere(replicas, routers, seed=-5.0)
    names = [f"new-{n}" for n in range(60)]
    live = frozenset((*here.replica_accounts, *names))
    here.members = frozenset({here.router})
    Compactor(here).compact(here.members, live=live, now_s=0.0)
    for name in names:
        here.observe(name, since=0, sequence=1, rows=[])
    each = iter(names)
    return cpu_s(lambda: promise(here, CLIENT, next(each), live=live), 20) * 1000


def idle_exchange(replicas: int, routers: int) -> tuple[float, float]:
    """(CPU ms, kB sent) per second of one router that asks all others and answers all, while nothing changes."""
    here, there = (known_everywhere(replicas, routers) for _ in range(2))
    there.router = router_name(1)
    for one in (here, there):
        one.live = frozenset(one.replica_accounts)
    ask = exchange_of(there, here)
    answer = exchange_of(here, there)
    for _ in range(3):
        ask()
        answer()
    sent = [0]

    def second() -> None:
        sent[0] = sum(ask()[0] + answer()[1] for _ in range(routers - 1))

    taken_s = cpu_s(second, 1)
    # Both sides ran here: a router asks and answers, so it has half of both.
    return taken_s * 1000 / 2, sent[0] / 1000


def exchange_of(asked: Ledger, asker: Ledger) -> Callable[[], tuple[int, int]]:
    """One exchange; returns the bytes of question and answer."""

    progress: Any = getattr(ledgers, "Progress", tuple)()  # an older commit has none

    def exchange() -> tuple[int, int]:
        digest = asker.digest(progress) if progress != () else asker.digest()
        question = ledgerwire.encode(digest)
        answer = [ledgerwire.encode(p) for p in asked.parts(ledgerwire.decode_digest(question))]
        for part in answer:
            delta = ledgerwire.decode_delta(part)
            asker.merge(delta)
        if progress != ():
            progress.answered(delta)
        return len(question), sum(map(len, answer))

    return exchange


def row_figures() -> dict[str, float]:
    """What it costs where a row changes, begins or goes."""
    found: dict[str, float] = {}
    for routers in (1, 3, 16):
        booked_us, taken_us = changed_rows(routers)
        found[f"rows: a request is booked, {routers} routers, us"] = booked_us
        found[f"rows: a changed row of a report, {routers} routers, us"] = taken_us
        found[f"rows: a look, for each client, {routers} routers, us"] = covered_look(routers)
    found["rows: a client has a request again, ns"] = begun(has_row=True)
    found["rows: the same, without a row, ns"] = begun(has_row=False)
    return found


def figures(only: str) -> dict[str, float]:
    """All figures of the packages that this process imports; or those whose name begins with `only`."""
    found: dict[str, float] = {}
    if "reports".startswith(only):
        for replicas in (64, 512, 2048):
            name = f"reports without news, {replicas} replicas, ms/s"
            found[name] = reports_without_news(replicas)
    for routers in (1, 3, 16):
        if "bytes".startswith(only):
            at_once, later = bytes_per_row(routers)
            found[f"bytes of a row, {routers} routers"] = at_once
            found[f"bytes of a row, {routers} routers, a minute later"] = later
    if "rows".startswith(only):
        found |= row_figures()
    for replicas, routers in ((64, 3), (512, 16)):
        size = f"{replicas} replicas x {routers} routers"
        if "service".startswith(only):
            found[f"service of one client, {size}, ms"] = one_clients_service(replicas, routers)
        if "dispatch".startswith(only):
            found[f"dispatch, the first, {size}, ms"] = first_dispatch(replicas, routers)
        if "exchange".startswith(only):
            taken_ms, sent_kb = idle_exchange(replicas, routers)
            found[f"exchange, idle, {size}, ms/s"] = taken_ms
            found[f"exchange, idle, {size}, kB/s"] = sent_kb
    return found


def figures_of(tree: Path, *options: str, program: str = __file__) -> dict[str, float]:
    """The figures of another tree's packages, by this program or another one in a new process."""
    packages = [str(path.parent) for path in tree.glob("*/evenkeel_*") if path.is_dir()]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*packages, str(ROOT)])}
    command = [sys.executable, program, "--figures", *options]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def at_commit(commit: str, into: Path) -> Path:
    """The files of a commit."""
    files = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True
    )
    with tarfile.open(fileobj=BytesIO(files.stdout)) as archive:
        archive.extractall(into, filter="data")
    return into


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="also measure this commit")
    parser.add_argument(
        "--only", default="", help="reports, rows, bytes, service, dispatch, exchange"
    )
    parser.add_argument("--figures", action="store_true", help="print JSON")
    args = parser.parse_args()
    if args.figures:
        print(json.dumps(figures(args.only)))
        return
    before: dict[str, float] = {}
    if args.before:
        with TemporaryDirectory() as folder:
            before = figures_of(at_commit(args.before, Path(folder)), "--only", args.only)
    for name, now in figures_of(ROOT, "--only", args.only).items():
        old = before.get(name)
        beside = f"{old:12.4f} {old / now:10.1f} x" if old is not None else ""
        print(f"{name:<60} {now:12.4f} {beside}")


if __name__ == "__main__":
    main()
