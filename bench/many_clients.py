"""What an engine's scheduler and reports cost beside many clients: CPU time of one core (design R21).

    python -m bench.many_clients [--before COMMIT] [--only report|pass] [--sizes 1k,10k,100k,1M]

Report without news: that many clients were served once and are gone, and a router asks what changed since its last report. News: the same
while ten clients each wait or run. Pass: each of that many clients has a request waiting, and the engine admits 64 of them or none; the
first pass follows the arrivals, the later ones a step in which all running requests produce a token. Matching prefixes is left out.

With `--before` a second process measures an older commit in the same run, and the last column is the ratio.

Each size is named on the standard error before it is measured. Slow: commits up to 2d219828 look at all clients in each report and pass, so a
million clients take minutes there. `--sizes` leaves them out.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

from evenkeel_contract.reportbook import Accounts, ReportBook
from evenkeel_contract.reports import REPORT_VERSION, ReportRequest, encode
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm

from bench.many_replicas import ROOT, at_commit, figures_of

SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1M": 1_000_000}
TENANTS = 8
ADMITTED = 64


def request(number: int, client: int) -> Request:
    """A request of 300 to 6,300 tokens."""
    tenant = f"ns/t{client % TENANTS}"
    return Request(
        id=str(number),
        client=f"{tenant}/c{client}",
        tenant=tenant,
        arrival_s=0.0,
        input_tokens=300 + number * 7919 % 6000,
        max_output_tokens=256,
        matched_tokens=number * 104_729 % 300,
    )


class Engine:
    """What an engine with a report book has: policy, accounts and book."""

    def __init__(self) -> None:
        self.policy = Dlpm(rules=DeficitRules(quantum=1000))
        self.accounts = Accounts(LinearCost())
        self.book = ReportBook(incarnation="one", policy="DLPM")
        self.running: list[Request] = []
        self.number = 0

    def arrive(self, client: int) -> Request:
        self.number += 1
        arrived = request(self.number, client)
        self.policy.arrive(arrived, 0.0)
        return arrived

    def admit(self, most: int) -> float:
        """A pass in which the engine takes so many requests and then has no room; returns its CPU seconds."""
        begin = process_time()
        offers = self.policy.admissions(0.0)
        proposed = next(offers, None)
        taken = []
        while proposed is not None and len(taken) < most:
            proposed.extend_tokens = proposed.uncached_tokens
            taken.append(proposed)
            proposed = next_after(offers, AdmissionResult.ADMITTED)
        if proposed is not None:
            next_after(offers, AdmissionResult.NO_ROOM)
        passed_s = process_time() - begin
        for one in taken:
            self.accounts.admitted(one, charged=True)
        self.running += taken
        return passed_s

    def step(self) -> None:
        """All running requests produce a token."""
        for one in self.running:
            one.output_tokens += 1
        self.policy.progress_all(self.running, 1)

    def end(self) -> None:
        """All running requests end."""
        for one in self.running:
            self.accounts.left(one)
            self.policy.leave(one, 0.0)
        self.running.clear()

    def report(self, since: int) -> int:
        """One answer to a router; returns the `since` of its next question."""
        for one in self.running:
            self.accounts.settle(one)
        try:
            from evenkeel_contract.reportbook import News
        except ImportError:
            states, quantum = self.policy.clients(), self.policy.quantum
            self.book.update(self.accounts.copy(), states, quantum)  # type: ignore[attr-defined]
        else:
            self.book.take(News.of(self.accounts, self.policy))
        answer = self.book.answer(ReportRequest(REPORT_VERSION, "one", since))
        encode(answer)
        return answer.sequence


def next_after(offers, outcome: AdmissionResult) -> Request | None:  # type: ignore[no-untyped-def]
    """The next proposal."""
    try:
        found: Request = offers.send(outcome)
    except StopIteration:
        return None
    return found


def report_ms(clients: int) -> tuple[float, float]:
    """CPU ms of a report without news, and of one with the news of ten clients."""
    engine, since = Engine(), 0
    for client in range(clients):
        engine.arrive(client)
        engine.admit(1)
        engine.end()
    while (now := engine.report(since)) != since:
        since = now
    gc.collect()
    quiet, busy = [], []
    for _ in range(5):
        begin = process_time()
        engine.report(since)
        quiet.append(process_time() - begin)
    for client in range(10):
        engine.arrive(client)
    engine.admit(5)
    for _ in range(5):
        engine.step()
        begin = process_time()
        since = engine.report(since)
        busy.append(process_time() - begin)
    return median(quiet) * 1e3, median(busy) * 1e3


def pass_ms(clients: int, admitted: int) -> tuple[float, float]:
    """CPU ms of the first pass, and of one of the next passes."""
    engine = Engine()
    for client in range(clients):
        engine.arrive(client)
    gc.collect()
    first = engine.admit(admitted)
    later = []
    for _ in range(9):
        engine.step()
        later.append(engine.admit(admitted))
    return first * 1e3, median(later) * 1e3


def figures(only: str, sizes: list[str]) -> dict[str, float]:
    """Name → value."""
    found: dict[str, float] = {}
    if "report".startswith(only):
        for name in sizes:
            print(f"report, {name} clients ...", file=sys.stderr, flush=True)
            quiet, busy = report_ms(SIZES[name])
            found[f"report without news, {name} clients ever, ms"] = quiet
            found[f"report with news of ten, {name} clients ever, ms"] = busy
    if "pass".startswith(only):
        for name in sizes:
            print(f"pass, {name} clients ...", file=sys.stderr, flush=True)
            for admitted in (0, ADMITTED):
                first, later = pass_ms(SIZES[name], admitted)
                found[f"first pass, {name} clients wait, {admitted} admitted, ms"] = first
                found[f"later pass, {name} clients wait, {admitted} admitted, ms"] = later
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="also measure this commit")
    parser.add_argument("--only", default="", help="report, pass")
    parser.add_argument(
        "--sizes", default="1k,10k,100k", help="numbers of clients: " + ", ".join(SIZES)
    )
    parser.add_argument("--figures", action="store_true", help="print JSON")
    args = parser.parse_args()
    sizes = args.sizes.split(",")
    if unknown := [size for size in sizes if size not in SIZES]:
        parser.error(f"--sizes: unknown {', '.join(unknown)}; known are {', '.join(SIZES)}")
    if args.figures:
        print(json.dumps(figures(args.only, sizes)))
        return
    options = "--only", args.only, "--sizes", args.sizes
    before: dict[str, float] = {}
    if args.before:
        with TemporaryDirectory() as folder:
            tree = at_commit(args.before, Path(folder))
            before = figures_of(tree, *options, program=__file__)
    for name, now in figures_of(ROOT, *options, program=__file__).items():
        old = before.get(name)
        beside = f"{old:12.4f} {old / now:10.1f} x" if old is not None else ""
        print(f"{name:<60} {now:12.4f} {beside}")


if __name__ == "__main__":
    main()
