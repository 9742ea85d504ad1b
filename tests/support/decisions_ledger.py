"""Decisions of the ledger when replicas end and quanta are counted, and of `evenkeel plan` on what a change does to clients."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from evenkeel_fairshare.ledger import CarryRules, EqualWeights, Ledger, ReplicaRow
from evenkeel_fairshare.ledger.closing import close, finish
from evenkeel_fairshare.ledger.compaction import QuantaSeen
from evenkeel_laboratory.experiments.whatif import ClientFigures, RunFigures, verdicts

from tests.support.decisions import text

CLIENTS = ("ns/a/x", "ns/a/y", "ns/b/z")


class Weights(EqualWeights):
    """Client y and tenant b weigh more."""

    def client(self, client: str) -> float:
        return 2.0 if client.endswith("y") else 1.0

    def tenant(self, tenant: str) -> float:
        return 3.0 if tenant.endswith("b") else 1.0


def _row(rng: Random, client: str, before: float) -> ReplicaRow:
    service = before + rng.choice((0.0, 10.0, 300.0))
    return ReplicaRow(
        client=client,
        service=service,
        normalised=service / Weights().client(client),
        requests=1,
        deficit=rng.choice((-350.0, -40.0, 0.0, 90.0)),
        seed=rng.choice((0.0, 0.0, -60.0)),
        waiting=rng.choice((0, 1)),
        tenant_deficit=rng.choice((-200.0, 0.0, 90.0)),
        tenant_seed=rng.choice((0.0, -60.0)),
    )


def _report(rng: Random, ledger: Ledger, name: str, sequence: int) -> None:
    account = ledger.replica_accounts.get(name)
    chosen = rng.sample(CLIENTS, rng.choice((1, 2, 3)))
    rows = [_row(rng, one, 0.0 if account is None else account.served(one)) for one in chosen]
    ledger.observe(name, since=sequence - 1, sequence=sequence, rows=rows)


def closings() -> Iterator[str]:
    """What is left of clients and tenants when a replica ends."""
    rules = CarryRules(quantum=100, overshoot=500)
    for seed in range(60):
        rng, ledger = Random(seed), Ledger("here", rules=rules)
        _report(rng, ledger, "x", 1)
        account = ledger.replica_accounts["x"]
        for client in rng.sample(CLIENTS, rng.choice((0, 1, 3))):
            account.received("here", client, rng.choice((5.0, 400.0, 1500.0)))
        unpromised = rng.choice((True, True, False))
        found = finish(close(account, rules, Weights(), unpromised=unpromised))
        yield f"{seed} {'' if unpromised else 'promised only '}{text(dict(sorted(found.clients.items())))} {text(dict(sorted(found.tenants.items())))}"


def quanta() -> Iterator[str]:
    """The quanta of replicas per tenant, from report to report."""
    for seed in range(25):
        rng, ledger = Random(seed), Ledger("here", rules=CarryRules(quantum=100, overshoot=500))
        ledger.weights = Weights()
        seen, lines = QuantaSeen(ledger), []
        finish(seen.begin())
        for sequence in range(1, 6):
            for name in ("x", "y"):
                _report(rng, ledger, name, sequence)
            touched = rng.sample(CLIENTS, 2)
            live = ("x", "y") if rng.randrange(4) else ("x",)
            lines.append(
                f"{text(touched)}: {text(finish(seen.since_last_compaction(touched, live)))}"
            )
        yield f"{seed} {' '.join(lines)}"


def _figures(rng: Random) -> RunFigures:
    clients = {
        name: ClientFigures(
            share=0.5,
            tokens_per_s=rng.choice((95.0, 100.0, 130.0)),
            ttft_p50_s=rng.choice((0.5, 0.6, 3.0)),
            ttft_p95_s=rng.choice((3.0, 3.0, 9.0)),
            gpu_s=1.0,
        )
        for name in rng.sample("abc", rng.choice((2, 3)))
    }
    return RunFigures(
        replicas=1, window_s=60.0, gpu_s=60.0, tokens_per_s=200.0, ttft_p50_s=1.0, verdict="", clients=clients,
    )  # fmt: skip


def changes() -> Iterator[str]:
    """Who gains and who loses by a change, beside the error of the model."""
    for seed in range(60):
        rng = Random(seed)
        recorded, before, after = (_figures(rng) for _ in range(3))
        found = [f"{one.effect}: {one.sentence}" for one in verdicts(recorded, before, after)]
        real = {
            name: (one.tokens_per_s, one.ttft_p50_s, one.ttft_p95_s)
            for name, one in recorded.clients.items()
        }
        yield f"{seed} {text(real)} => {' '.join(found)}"


TABLES = {
    "fairshare-closings": closings,
    "fairshare-quanta": quanta,
    "laboratory-changes": changes,
}
