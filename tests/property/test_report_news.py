"""What a policy tells of its changes adds up to what it knows: a report by `news` is the report by a comparison of all clients."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random

from evenkeel_contract.reportbook import Accounts, News, ReportBook
from evenkeel_contract.reports import REPORT_VERSION, ClientReport, ReportRequest, unserved
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.contract import AdmissionResult, Request
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.dlpm import Dlpm
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.replica import request


def next_after(
    offers: Generator[Request, AdmissionResult, None], outcome: AdmissionResult
) -> Request | None:
    try:
        return offers.send(outcome)
    except StopIteration:
        return None


@dataclass
class Engine:
    """An engine of one policy, which a book follows by news."""

    policy: Dlpm
    rng: Random
    accounts: Accounts = field(default_factory=lambda: Accounts(LinearCost()))
    book: ReportBook = field(default_factory=lambda: ReportBook(incarnation="one", policy="DLPM"))
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    now_s: float = 0.0
    number: int = 0

    def arrive(self) -> None:
        tenant = f"ns/t{self.rng.randrange(3)}"
        arrived = request(
            str(self.number),
            f"{tenant}/c{self.rng.randrange(5)}",
            tenant,
            extend=self.rng.choice([1, 30, 100, 330, 3000]),
            seed=self.rng.choice([0, 0, -250, 90]),
            tenant_seed=self.rng.choice([0, 0, -700]),
        )
        self.number += 1
        self.policy.arrive(arrived, self.now_s)
        self.waiting.append(arrived)

    def admit(self) -> None:
        offers = self.policy.admissions(self.now_s)
        proposed = next(offers, None)
        while proposed is not None and self.rng.random() < 0.9:
            outcome = self.rng.choice([AdmissionResult.LATER, *[AdmissionResult.ADMITTED] * 4])
            if outcome is AdmissionResult.ADMITTED:
                self.waiting.remove(proposed)
                self.running.append(proposed)
                self.accounts.admitted(proposed, charged=proposed.charge_input)
            proposed = next_after(offers, outcome)
        offers.close()

    def decode(self) -> None:
        for one in self.running:
            one.output_tokens += 1
        if self.running:
            self.policy.progress_all(self.running, 1)

    def end(self) -> None:
        for held in (self.waiting, self.running):
            if held and self.rng.random() < 0.5:
                one = held.pop(self.rng.randrange(len(held)))
                if held is self.running:
                    self.accounts.left(one)
                self.policy.leave(one, self.now_s)

    def retract(self) -> None:
        if self.running:
            one = self.running.pop()
            self.accounts.left(one)
            self.policy.requeue(one, self.now_s)
            self.waiting.append(one)

    def report(self) -> None:
        for one in self.running:
            self.accounts.settle(one)
        self.book.take(News.of(self.accounts, self.policy))


def rows(book: ReportBook) -> dict[str, ClientReport]:
    return {row.client: row for row in book.answer(ReportRequest(REPORT_VERSION, "one", 0)).clients}


@examples(150)
@given(
    seed=st.integers(0, 100_000),
    quantum=st.sampled_from([40, 100, 1000]),
    remembered=st.sampled_from([2, 65_536]),
    warmup_s=st.sampled_from([0.0, 3.0]),
)
def test_news_add_up_to_all_that_the_policy_knows(seed, quantum, remembered, warmup_s):
    rng = Random(seed)
    rules = DeficitRules(quantum=quantum, remembered=remembered)
    engine = Engine(Dlpm(rules=rules, warmup_s=warmup_s), rng)
    acts = [engine.arrive, engine.arrive, engine.admit, engine.decode, engine.end, engine.retract]
    for _ in range(60):
        engine.now_s += rng.choice([0.01, 1])
        rng.choice(acts)()
        if rng.random() < 0.1:
            engine.policy.change_quantum(rng.choice([50.0, 200.0]))
        if rng.random() < 0.5:
            continue
        engine.report()
        whole = ReportBook(incarnation="one", policy="DLPM")
        whole.update(engine.accounts.clients, engine.policy.clients())
        told, known = rows(engine.book), engine.policy.clients()
        for client, row in rows(whole).items():
            if client not in told:  # it was here before the first news, and left nothing
                row.tenant_deficit = row.tenant_seed = 0.0
                assert row == unserved(client)
                continue
            if client not in known:  # no client of its tenant may be there
                row.tenant_deficit = told[client].tenant_deficit
                row.tenant_seed = told[client].tenant_seed
            assert told[client] == row
        for client in told.keys() - rows(whole).keys():
            row = told[client]
            assert (row.deficit, row.seed, row.waiting, row.service) == (0, 0, 0, 0)
