"""Memory of clients that came once: at replicas and routers, before and after two idle periods, in virtual time.

    python -m bench.came_once                                bytes per client, by tracemalloc
    python -m bench.came_once --hours 24 --clients 10000000 --out bench/results   the size of the process, every ten minutes

Each client sends one request to one of eight replicas. Reports and exchanges with the figures and closed totals of a real router are
every minute of virtual time, and replicas look at their clients every five seconds, so a day of a million takes 90 s of CPU, and one of ten
million about 21 minutes. `--debts`: of so many clients in a hundred a debt stays.
"""

from __future__ import annotations

import argparse
import csv
import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import NamedTuple

import matplotlib
import psutil
from evenkeel_contract.reportbook import Accounts, News, ReportBook
from evenkeel_contract.reports import IDLE_LOOK_S, IDLE_S, REPORT_VERSION, ReportRequest
from evenkeel_contract.routerconfig import TenancyConfig
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.ledger import CarryRules, Compactor, Ledger, ReplicaRow
from evenkeel_fairshare.replica.contract import ClientDeficits, Request
from evenkeel_router.ledger.fairness import Fairness
from evenkeel_router.ledger.maintenance import COVERED_LOOK_S
from evenkeel_router.ledger.totals import DemandMeter
from evenkeel_router.ledger.weights import ConfiguredWeights
from matplotlib import pyplot

REPLICAS = 8
LOOK_S = 60.0
QUICK_S = 5.0
"""Time between two looks of a replica, and of all while nothing comes."""
SAMPLE_S = 600.0
TOKENS = 100


class Debts:
    """What a policy has left of clients: the debts."""

    quantum = 1000.0

    def __init__(self) -> None:
        self.new: dict[str, ClientDeficits] = {}

    def news(self) -> dict[str, ClientDeficits]:
        new, self.new = self.new, {}
        return new


class Replica:
    """The side of a replica that reports."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accounts = Accounts(LinearCost())
        self.policy = Debts()
        self.book = ReportBook(incarnation=name, policy="DLPM")

    def serve(self, client: str, tenant: str, *, debt: float) -> None:
        request = Request(client, client, tenant, 0.0, TOKENS, 9)
        request.extend_tokens = TOKENS
        self.accounts.admitted(request, charged=True)
        request.output_tokens = TOKENS
        self.accounts.left(request)
        if debt:
            self.policy.new[client] = ClientDeficits(-debt, 0.0, 0)

    def refresh(self, now_s: float) -> None:
        idle = self.book.idle(now_s)
        self.book.take(News.of(self.accounts, self.policy, idle))  # type: ignore[arg-type]


class Router:
    """The side of a router that keeps the ledger."""

    def __init__(self, replicas: list[Replica]) -> None:
        self.replicas = replicas
        self.ledger = Ledger("only", rules=CarryRules(quantum=1000.0, overshoot=10_000.0))
        self.compactor = Compactor(self.ledger)
        self.fairness = Fairness(self.ledger)
        self.demand = DemandMeter()
        self.weights = ConfiguredWeights(TenancyConfig())
        self.live = frozenset(one.name for one in replicas)
        self.now_s = self.forgot_s = self.dropped_s = 0.0

    def received(self, replica: str, client: str, now_s: float) -> None:
        self.demand.arrived(client, now_s)
        self.ledger.begins(replica, client)
        self.ledger.promised(replica, client, seed=0.0, tenant_seed=0.0)
        self.ledger.received(replica, client, 3.0 * TOKENS)
        self.demand.finished(client, 3.0 * TOKENS)

    def look(self, now_s: float) -> None:
        self.now_s = now_s
        for one in self.replicas:
            one.refresh(now_s)
            while True:
                since = int(self.ledger.sequence(one.name))
                report = one.book.answer(ReportRequest(REPORT_VERSION, one.name, since))
                if not report.clients:
                    break
                columns = ReplicaRow._fields
                rows = [ReplicaRow(*(getattr(row, c) for c in columns)) for row in report.clients]
                self.ledger.observe(one.name, since=since, sequence=report.sequence, rows=rows)
        self.ledger.requested(self.demand.rates(now_s))
        for _ in self.fairness.steps(self.live, self.weights, now_s):
            pass
        self.compactor.compact(["only"], live=self.live, now_s=now_s)
        self.compactor.collect(["only"])
        if now_s - self.dropped_s >= COVERED_LOOK_S:
            self.dropped_s = now_s
            for _ in self.ledger.drop_covered(self.live, lambda *_: False):
                pass
        if now_s - self.forgot_s >= IDLE_LOOK_S:
            self.forgot_s = now_s
            for _ in self.ledger.forget_idle(self.live, lambda *_: False):
                pass


def lived(router: Router, clients: range, seconds: float, debts: int) -> Iterator[float]:
    """Clients come at a steady rate from `router.now_s` on; yields the time of each look, seconds."""
    looks, begin_s, came = max(1, round(seconds / LOOK_S)), router.now_s, clients.start
    for look in range(1, looks + 1):
        now_s = begin_s + look * LOOK_S
        while came < clients.start + len(clients) * look // looks:
            replica, tenant = router.replicas[came % REPLICAS], f"ns/tenant-{came % 10}"
            name = f"{tenant}/client-{came:08d}"
            replica.serve(name, tenant, debt=50.0 if came % 100 < debts else 0.0)
            router.received(replica.name, name, now_s)
            came += 1
        # A replica looks at its clients each second, and gives some of them back at each look.
        for at_s in range(int(now_s - LOOK_S + QUICK_S), int(now_s), int(QUICK_S)):
            for one in router.replicas:
                one.refresh(float(at_s))
        router.look(now_s)
        yield now_s


def per_client(clients: int, debts: int) -> None:
    """Print bytes per client when all came, and two idle periods later; then the same with as many other clients."""
    router = Router([Replica(f"replica-{n}") for n in range(REPLICAS)])
    gc.collect()
    tracemalloc.start()
    begin = _size()
    for wave in ("clients", "others"):
        first = clients if wave == "others" else 0
        for _ in lived(router, range(first, first + clients), 4 * LOOK_S, debts):
            pass
        print(
            f"{clients} {wave} came: {(_size() - begin) / clients:.0f} bytes for each", flush=True
        )
        until_s = router.now_s + 2 * IDLE_S
        while router.now_s < until_s:
            router.look(router.now_s + QUICK_S)
        print(f"two idle periods later: {(_size() - begin) / clients:.0f} bytes", flush=True)


def _size() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


class Sample(NamedTuple):
    """The process at a moment of virtual time."""

    hour: float
    mib: float
    """Resident memory."""
    at_replicas: int
    """Rows of all replicas."""
    in_ledger: int
    """Clients in the ledger."""
    cpu_s: float
    """CPU time since the start."""


def samples(clients: int, hours: float, debts: int) -> Iterator[Sample]:
    """The process, every `SAMPLE_S`."""
    router = Router([Replica(f"replica-{n}") for n in range(REPLICAS)])
    process, begin = psutil.Process(), process_time()
    for now_s in lived(router, range(clients), hours * 3600, debts):
        if now_s % SAMPLE_S == 0:
            yield Sample(
                now_s / 3600,
                process.memory_info().rss / 2**20,
                sum(len(one.accounts.clients) for one in router.replicas),
                len(router.ledger.service),
                process_time() - begin,
            )


def save(folder: Path, clients: int, seen: list[Sample]) -> None:
    """The table, and its picture."""
    with (folder / "came-once.csv").open("w", newline="") as file:
        rows = (
            (f"{one.hour:.2f}", f"{one.mib:.1f}", *one[2:4], f"{one.cpu_s:.0f}") for one in seen
        )
        csv.writer(file).writerows([Sample._fields, *rows])
    matplotlib.use("Agg")
    figure, (memory, number) = pyplot.subplots(2, 1, figsize=(7, 5), sharex=True)
    at = [one.hour for one in seen]
    memory.plot(at, [one.mib for one in seen])
    memory.set(ylabel="resident memory, MiB", ylim=(0, None), xlim=(0, None))
    came = [one.hour * clients / seen[-1].hour for one in seen]
    number.plot(at, came, "--", label="clients that came")
    number.plot(at, [one.in_ledger for one in seen], label="clients that the ledger keeps")
    number.plot(at, [one.at_replicas for one in seen], ":", label="rows of all replicas")
    number.set(xlabel="hours of virtual time", ylabel="clients", yscale="log")
    number.legend(frameon=False)
    figure.tight_layout()
    (folder / "images").mkdir(exist_ok=True)
    figure.savefig(folder / "images" / "came-once.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    parser.add_argument("--clients", type=int, default=50_000)
    parser.add_argument(
        "--hours", type=float, default=0.0, help="virtual time; 0: bytes per client"
    )
    parser.add_argument("--debts", type=int, default=0, help="percent of clients that leave a debt")
    parser.add_argument("--out", type=Path, help="folder of the table and the picture")
    given = parser.parse_args()
    if given.hours:
        seen = []
        for one in samples(given.clients, given.hours, given.debts):
            seen.append(one)
            print(
                f"hour {one.hour:5.2f}   {one.mib:7.0f} MiB   {one.at_replicas:8d} rows at replicas   "
                f"{one.in_ledger:8d} clients in the ledger   {one.cpu_s:6.0f} s of CPU",
                flush=True,
            )
        if given.out:
            save(given.out, given.clients, seen)
    else:
        per_client(given.clients, given.debts)


if __name__ == "__main__":
    main()
